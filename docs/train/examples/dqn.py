"""DQN on recorded transitions: the target network is state of the script's own, which checkpoints keep.

python dqn.py
mpirun -np 2 python -m runner dqn.py --max-steps 50
mpirun -np 2 python -m runner dqn.py --resume
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.data import TensorDataset

import runner

ACTIONS = torch.tensor([-0.1, 0.0, 0.1])  # what each adds to the velocity


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 32
    width: int = 32
    discount: float = 0.9
    target_every: int = runner.option(8, "steps from one copy of the network to the next")


def transitions(count: int) -> TensorDataset:
    """Of a cart on a line, which is to stay near 0: state [position, velocity], action, reward, next state."""
    draw = torch.Generator().manual_seed(1)
    state = torch.rand(count, 2, generator=draw) * 2 - 1
    action = torch.randint(len(ACTIONS), (count,), generator=draw)
    velocity = state[:, 1] + ACTIONS[action]
    after = torch.stack([state[:, 0] + 0.1 * velocity, velocity], dim=1)
    return TensorDataset(state, action, -after.square().sum(dim=1), after)


def values(width: int) -> nn.Module:
    """Of a state, one value per action."""
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, len(ACTIONS)))


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    network = run.prepare(values(options.width), optimizer=partial(torch.optim.Adam, lr=options.lr))
    like = next(network.module.parameters())
    target = values(options.width).to(run.device, like.dtype)  # not prepared: it is not trained
    target.load_state_dict(network.state_dict())
    run.register(target=target)

    for state, action, reward, after in run.batches(transitions(3200)):
        with torch.no_grad():
            wanted = reward + options.discount * target(after).amax(dim=1)
        loss = smooth_l1_loss(network(state).gather(1, action[:, None])[:, 0], wanted)
        network.backward(loss)
        network.step()
        run.log(loss=loss)
        if (run.step + 1) % options.target_every == 0:  # with the step that is being done
            target.load_state_dict(network.state_dict())


if __name__ == "__main__":
    main()
