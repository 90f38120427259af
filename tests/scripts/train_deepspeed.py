"""A DeepSpeed script as its tutorials write it: its engine with ZeRO of some stages, or the pipeline of its PipelineModule."""

import argparse
import itertools

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.utils.data import TensorDataset


def train_by_engine(model, config, data, steps):
    engine, _, loader, _ = deepspeed.initialize(model=model, config=config, training_data=data)
    losses = []
    for inputs, targets in itertools.islice(loader, steps):
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / dist.get_world_size())
    return losses


def train_pipeline(model, config, data, steps, stages):
    module = PipelineModule(layers=list(model), loss_fn=nn.MSELoss(), num_stages=stages, partition_method="uniform")
    engine, _, _, _ = deepspeed.initialize(model=module, config=config, training_data=data)
    return [engine.train_batch().item() for _ in range(steps)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1, help="given by DeepSpeed's launcher")
    parser.add_argument("--stages", type=int, nargs="+", default=[0], help="of ZeRO; a training by each")
    parser.add_argument("-p", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("-s", "--steps", type=int, default=6)
    args = parser.parse_args()
    deepspeed.init_distributed()
    for stage in args.stages:
        losses = train(args, stage)
        if dist.get_rank() == 0:
            print("losses", *losses, flush=True)


def train(args, stage):
    is_pipeline = args.pipeline_parallel_size > 1
    config = {
        "train_batch_size": 32,
        "gradient_accumulation_steps": 8 if is_pipeline else 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    torch.manual_seed(0)
    inputs = torch.rand(256, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if is_pipeline:
        return train_pipeline(model, config, data, args.steps, args.pipeline_parallel_size)
    return train_by_engine(model, config, data, args.steps)


if __name__ == "__main__":
    main()
