"""A DeepSpeed script as its tutorials write it: its engine with ZeRO of some stages, or the pipeline of its PipelineModule."""

import argparse
import itertools

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.utils.data import TensorDataset


def train_by_engine(args, model, config, data):
    engine, _, loader, _ = deepspeed.initialize(args=args, model=model, config=config, training_data=data)
    losses = []
    for inputs, targets in itertools.islice(loader, args.steps):
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / dist.get_world_size())
    return losses


def train_pipeline(args, model, config, data):
    stages = args.pipeline_parallel_size
    module = PipelineModule(layers=list(model), loss_fn=nn.MSELoss(), num_stages=stages, partition_method="uniform")
    engine, _, _, _ = deepspeed.initialize(args=args, model=module, config=config, training_data=data)
    return [engine.train_batch().item() for _ in range(args.steps)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1, help="given by DeepSpeed's launcher")
    parser.add_argument("--stages", type=int, nargs="+", default=[0], help="of ZeRO; a training by each")
    parser.add_argument("-p", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("-s", "--steps", type=int, default=6)
    parser = deepspeed.add_config_arguments(parser)  # --deepspeed_config FILE
    args = parser.parse_args()
    deepspeed.init_distributed()
    for stage in args.stages:
        losses = train(args, stage)
        if dist.get_rank() == 0:
            print("losses", *losses, flush=True)


def train(args, stage):
    config = {
        "train_batch_size": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if args.deepspeed_config is not None:
        config = None
    torch.manual_seed(0)
    inputs = torch.rand(256, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    train_by = train_pipeline if args.pipeline_parallel_size > 1 else train_by_engine
    return train_by(args, model, config, data)


if __name__ == "__main__":
    main()
