import gc

print("during", gc.isenabled())
