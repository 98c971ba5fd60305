"""Short programs for a device; a comment ``wait`` marks each line where the host waits for a GPU.

The marks follow torch's documentation and the source of its CUDA kernels. Each program gets the
device and returns what it computed, which must not depend on the device.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional

Snippet = Callable[[torch.device], Any]
SNIPPETS: list[Snippet] = []


def snippet(function: Snippet) -> Snippet:
    SNIPPETS.append(function)
    return function


# Reading values.


@snippet
def item_of_a_loss(device: torch.device) -> Any:
    loss = torch.ones(3, device=device).sum()
    return loss.item()  # wait


@snippet
def loss_is_kept_on_the_device(device: torch.device) -> Any:
    losses = [torch.ones(3, device=device).mean().detach() for _ in range(3)]
    return torch.stack(losses)


@snippet
def item_once_per_epoch(device: torch.device) -> Any:
    total = torch.zeros((), device=device)
    for step in range(4):
        total += torch.full((2,), float(step), device=device).sum()
    return total.item()  # wait


@snippet
def condition_on_a_tensor(device: torch.device) -> Any:
    x = torch.arange(4, device=device)
    if (x > 2).any():  # wait
        x = x * 2
    return x


@snippet
def condition_on_a_shape(device: torch.device) -> Any:
    x = torch.arange(4, device=device)
    if x.shape[0] > 2 and x.numel() == 4:
        x = x * 2
    return x


@snippet
def condition_on_none(device: torch.device) -> Any:
    mask: Tensor | None = torch.ones(2, device=device)
    return mask + 1 if mask is not None else None


@snippet
def while_loop_until_done(device: torch.device) -> Any:
    count = torch.zeros((), device=device)
    while count < 3:  # wait
        count = count + 1
    return count


@snippet
def float_of_a_tensor(device: torch.device) -> Any:
    scale = torch.tensor([0.5]).to(device)  # wait
    return float(scale)  # wait


@snippet
def int_of_a_tensor(device: torch.device) -> Any:
    length = torch.ones(1, dtype=torch.int64, device=device) * 3
    return int(length[0])  # wait


@snippet
def tensor_as_a_size(device: torch.device) -> Any:
    n = torch.ones((), dtype=torch.int64, device=device) * 2
    return torch.zeros(int(n), device=device)  # wait


@snippet
def tensor_as_an_index_of_a_list(device: torch.device) -> Any:
    names = ["left", "right"]
    which = torch.ones((), dtype=torch.int64, device=device)
    return names[which]  # wait


@snippet
def tolist_of_rewards(device: torch.device) -> Any:
    return torch.arange(3.0, device=device).tolist()  # wait


@snippet
def printing_a_tensor(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    text = f"{x}"  # wait
    return len(text) > 0


@snippet
def printing_a_shape(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return f"{tuple(x.shape)} {x.dtype}"


@snippet
def assertion_on_values(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    assert torch.isfinite(x).all()  # wait
    return x


@snippet
def all_close(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return torch.allclose(x, x + 1e-9)  # wait


@snippet
def equal(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return torch.equal(x, x)  # wait


@snippet
def elementwise_equal(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return (x == x).all()


@snippet
def iterate_over_rows(device: torch.device) -> Any:
    return [row + 1 for row in torch.ones(3, 2, device=device)]


@snippet
def iterate_over_values(device: torch.device) -> Any:
    total = 0.0
    for value in torch.ones(3, device=device):
        total += value.item()  # wait
    return total


@snippet
def python_sum(device: torch.device) -> Any:
    return sum(torch.ones(3, device=device))


@snippet
def python_max(device: torch.device) -> Any:
    return max(torch.arange(3, device=device))  # wait


@snippet
def torch_max(device: torch.device) -> Any:
    return torch.arange(3, device=device).max()


@snippet
def value_in_a_tensor(device: torch.device) -> Any:
    x = torch.arange(3, device=device)
    return 2 in x  # wait


@snippet
def truth_of_one_flag(device: torch.device) -> Any:
    done = torch.zeros(1, dtype=torch.bool, device=device)
    return 1 if done else 0  # wait


@snippet
def logical_and_of_tensors(device: torch.device) -> Any:
    a = torch.ones(2, dtype=torch.bool, device=device)
    return a & ~a | a


@snippet
def python_and_of_tensors(device: torch.device) -> Any:
    a = torch.ones(1, dtype=torch.bool, device=device)
    return a and a  # wait


# Copies.


@snippet
def observation_from_numpy(device: torch.device) -> Any:
    observation = np.zeros(3, np.float32)
    return torch.from_numpy(observation).to(device)  # wait


@snippet
def observation_as_tensor(device: torch.device) -> Any:
    return torch.as_tensor(np.zeros(3, np.float32), device=device)  # wait


@snippet
def tensor_with_a_device(device: torch.device) -> Any:
    return torch.tensor([1.0, 2.0], device=device)  # wait


@snippet
def scalar_tensor_with_a_device(device: torch.device) -> Any:
    return torch.tensor(0.5, device=device)  # wait


@snippet
def full_of_a_scalar(device: torch.device) -> Any:
    return torch.full((), 0.5, device=device)


@snippet
def created_on_the_device(device: torch.device) -> Any:
    return torch.zeros(2, 3, device=device) + torch.arange(3, device=device)


@snippet
def created_on_the_host_and_moved(device: torch.device) -> Any:
    return torch.zeros(2, 3).to(device)  # wait


@snippet
def moved_without_blocking(device: torch.device) -> Any:
    return torch.ones(2, 3).to(device, non_blocking=True)


@snippet
def action_to_numpy(device: torch.device) -> Any:
    action = torch.ones(2, device=device).tanh()
    return action.cpu().numpy()  # wait


@snippet
def action_detached_to_numpy(device: torch.device) -> Any:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.zero_()
    layer.to(device)  # wait
    action = layer(torch.ones(1, 2, device=device))
    return action.detach().cpu().numpy()  # wait


@snippet
def to_the_same_device(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return x.to(device).to(x.device)


@snippet
def to_another_dtype(device: torch.device) -> Any:
    return torch.ones(2, device=device).to(torch.float64).float().half()


@snippet
def to_like_another_tensor(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return torch.zeros(2).to(x)  # wait


@snippet
def type_as_on_the_device(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return x.long().type_as(x)


@snippet
def new_tensor_of_host_data(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return x.new_tensor([1.0, 2.0])  # wait


@snippet
def new_zeros(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    return x.new_zeros(3) + x.new_full((3,), 2.0)


@snippet
def copy_into_a_buffer(device: torch.device) -> Any:
    buffer = torch.zeros(3, device=device)
    buffer.copy_(torch.arange(3.0))  # wait
    return buffer


@snippet
def copy_within_the_device(device: torch.device) -> Any:
    buffer = torch.zeros(3, device=device)
    buffer.copy_(torch.ones(3, device=device))
    return buffer


@snippet
def buffer_on_the_host(device: torch.device) -> Any:
    buffer = torch.zeros(2, 3)
    buffer[0].copy_(torch.ones(3, device=device))  # wait
    return buffer


@snippet
def assignment_into_a_buffer_on_the_host(device: torch.device) -> Any:
    buffer = torch.zeros(2, 3)
    buffer[1] = torch.ones(3, device=device)  # wait
    return buffer


@snippet
def module_moved_once(device: torch.device) -> Any:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.5)
    layer.to(device)  # wait
    return layer(torch.ones(2, device=device))


# Indexing.


@snippet
def select_with_a_mask(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x[x > 1]  # wait


@snippet
def where_instead_of_a_mask(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return torch.where(x > 1, x, torch.zeros_like(x))


@snippet
def fill_with_a_mask(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    x[x > 1] = 0.0
    return x


@snippet
def masked_fill(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x.masked_fill(x > 1, 0.0)


@snippet
def assign_values_to_a_mask(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    x[x > 1] = torch.zeros(2, device=device)  # wait
    return x


@snippet
def fill_at_indices(device: torch.device) -> Any:
    x = torch.zeros(4, device=device)
    ids = torch.arange(2, device=device)
    x[ids] = 1.0  # wait
    return x


@snippet
def assign_at_indices(device: torch.device) -> Any:
    x = torch.zeros(4, device=device)
    ids = torch.arange(2, device=device)
    x[ids] = torch.ones(2, device=device)
    return x


@snippet
def index_fill(device: torch.device) -> Any:
    x = torch.zeros(4, device=device)
    return x.index_fill_(0, torch.arange(2, device=device), 1.0)


@snippet
def select_at_indices(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x[torch.arange(2, device=device)]


@snippet
def select_at_indices_on_the_host(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x[torch.arange(2)]  # wait


@snippet
def select_at_a_list(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x[[0, 2]]  # wait


@snippet
def slices(device: torch.device) -> Any:
    x = torch.arange(12.0, device=device).view(3, 4)
    return x[1:, ::2] + x[0, 1] + x[..., -1:].mean()


@snippet
def fill_a_slice(device: torch.device) -> Any:
    x = torch.zeros(3, 4, device=device)
    x[1:] = 2.0
    x[:, 0] = 1
    return x


@snippet
def gather_and_scatter(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    ids = torch.arange(3, -1, -1, device=device)
    return x.gather(0, ids) + torch.zeros_like(x).scatter_(0, ids, 1.0)


@snippet
def index_select(device: torch.device) -> Any:
    return torch.arange(4.0, device=device).index_select(0, torch.arange(2, device=device))


@snippet
def nonzero_of_done(device: torch.device) -> Any:
    done = torch.arange(4, device=device) > 2
    return done.nonzero().squeeze(-1)  # wait


@snippet
def where_of_one_argument(device: torch.device) -> Any:
    done = torch.arange(4, device=device) > 2
    return torch.where(done)[0]  # wait


@snippet
def masked_select(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return torch.masked_select(x, x > 1)  # wait


@snippet
def flip_and_roll(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x.flip(0).roll(1)


# Operators whose result depends on values.


@snippet
def unique_values(device: torch.device) -> Any:
    return torch.unique(torch.arange(3, device=device))  # wait


@snippet
def bincount(device: torch.device) -> Any:
    return torch.bincount(torch.arange(3, device=device))  # wait


@snippet
def repeat_interleave_by_a_tensor(device: torch.device) -> Any:
    x = torch.arange(3, device=device)
    return torch.repeat_interleave(x, x)  # wait


@snippet
def repeat_interleave_by_a_number(device: torch.device) -> Any:
    return torch.arange(3, device=device).repeat_interleave(2)


@snippet
def one_hot_of_known_size(device: torch.device) -> Any:
    return functional.one_hot(torch.arange(3, device=device), 4)


@snippet
def one_hot_of_unknown_size(device: torch.device) -> Any:
    return functional.one_hot(torch.arange(3, device=device))  # wait


@snippet
def sort_and_topk(device: torch.device) -> Any:
    x = torch.arange(5.0, device=device)
    return x.sort(descending=True).values + x.topk(5).values


@snippet
def argmax(device: torch.device) -> Any:
    return torch.arange(6.0, device=device).view(2, 3).argmax(-1)


@snippet
def cumulative_sums(device: torch.device) -> Any:
    return torch.arange(4.0, device=device).cumsum(0).cumprod(0)


@snippet
def quantile(device: torch.device) -> Any:
    return torch.arange(5.0, device=device).quantile(0.5)


@snippet
def histogram_by_scatter(device: torch.device) -> Any:
    ids = torch.arange(3, device=device)
    return torch.zeros(4, device=device).scatter_add_(0, ids, torch.ones(3, device=device))


# Transforms of observations.


@snippet
def normalize(device: torch.device) -> Any:
    mean, std = torch.zeros(3, device=device), torch.ones(3, device=device)
    return (torch.ones(2, 3, device=device) - mean) / (std + 1e-8)


@snippet
def normalize_with_statistics_on_the_host(device: torch.device) -> Any:
    mean = torch.zeros(3)
    return torch.ones(2, 3, device=device) - mean.to(device)  # wait


@snippet
def clip(device: torch.device) -> Any:
    return torch.arange(4.0, device=device).clamp(-1.0, 2.0)


@snippet
def clip_by_scalar_tensors_of_the_host(device: torch.device) -> Any:
    return torch.arange(4.0, device=device) * torch.tensor(2.0)


@snippet
def running_statistics(device: torch.device) -> Any:
    count, mean = torch.zeros((), device=device), torch.zeros(2, device=device)
    for step in range(3):
        x = torch.full((4, 2), float(step), device=device)
        count += x.shape[0]
        mean += (x.mean(0) - mean) * x.shape[0] / count
    return mean


@snippet
def running_statistics_with_a_read(device: torch.device) -> Any:
    count, mean = torch.zeros((), device=device), torch.zeros(2, device=device)
    x = torch.ones(4, 2, device=device)
    count += 4
    mean += (x.mean(0) - mean) * (4 / count.item())  # wait
    return mean


@snippet
def images_to_floats(device: torch.device) -> Any:
    image = torch.zeros(8, 8, 3, dtype=torch.uint8, device=device)
    return image.permute(2, 0, 1).float().div_(255)


@snippet
def resize_images(device: torch.device) -> Any:
    image = torch.ones(1, 3, 8, 8, device=device)
    return functional.interpolate(image, size=(4, 4), mode="bilinear", antialias=True)


@snippet
def crop_at_a_random_place_of_the_host(device: torch.device) -> Any:
    top = int(np.random.default_rng(0).integers(0, 4))
    return torch.ones(3, 8, 8, device=device)[:, top : top + 4, :4]


@snippet
def crop_at_a_random_place_of_the_device(device: torch.device) -> Any:
    top = int(torch.zeros((), dtype=torch.int64, device=device))  # wait
    return torch.ones(3, 8, 8, device=device)[:, top : top + 4, :4]


@snippet
def stack_frames(device: torch.device) -> Any:
    frames = torch.zeros(4, 3, device=device)
    for step in range(3):
        frames = torch.cat([frames[1:], torch.full((1, 3), float(step), device=device)])
    return frames


@snippet
def reset_a_stack_where_done(device: torch.device) -> Any:
    frames = torch.ones(2, 4, 3, device=device)
    done = torch.arange(2, device=device) > 0
    return torch.where(done.view(2, 1, 1), torch.zeros_like(frames), frames)


@snippet
def reset_a_stack_by_a_condition(device: torch.device) -> Any:
    frames = torch.ones(2, 4, 3, device=device)
    done = torch.arange(2, device=device) > 0
    if done.any():  # wait
        frames[done] = 0.0
    return frames


@snippet
def episode_lengths(device: torch.device) -> Any:
    length = torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(4):
        length += 1
        done = length >= 3
        length = length.masked_fill(done, 0)
    return length


@snippet
def logged_lengths_of_finished_episodes(device: torch.device) -> Any:
    length = torch.arange(4, device=device)
    done = length > 2
    return length[done].float().mean().item()  # wait


@snippet
def discounted_returns(device: torch.device) -> Any:
    rewards = torch.ones(5, 2, device=device)
    returns = torch.zeros(2, device=device)
    for reward in rewards.flip(0):
        returns = reward + 0.99 * returns
    return returns


@snippet
def scale_actions(device: torch.device) -> Any:
    low, high = torch.full((2,), -2.0, device=device), torch.full((2,), 2.0, device=device)
    return low + (torch.zeros(2, device=device) + 1) * (high - low) / 2


@snippet
def discretize_actions(device: torch.device) -> Any:
    edges = torch.linspace(-1, 1, 5, device=device)
    return torch.bucketize(torch.zeros(2, device=device), edges)


@snippet
def euler_angles(device: torch.device) -> Any:
    q = torch.ones(3, 4, device=device) / 2
    w, x, y, z = q.unbind(-1)
    return torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))


@snippet
def rotate_vectors(device: torch.device) -> Any:
    q, v = torch.ones(3, 4, device=device) / 2, torch.ones(3, 3, device=device)
    t = 2 * torch.cross(q[:, 1:], v, dim=-1)
    return v + q[:, :1] * t + torch.cross(q[:, 1:], t, dim=-1)


@snippet
def reset_of_chosen_envs(device: torch.device) -> Any:
    state = torch.ones(4, 2, device=device)
    env_ids = (torch.arange(4, device=device) > 1).nonzero(as_tuple=False).flatten()  # wait
    if len(env_ids) > 0:
        state[env_ids] = torch.zeros(2, 2, device=device)
    return state


@snippet
def reset_by_a_scalar_at_chosen_envs(device: torch.device) -> Any:
    lengths = torch.ones(4, device=device)
    env_ids = torch.arange(2, device=device)
    lengths[env_ids] = 0  # wait
    return lengths


@snippet
def contact_forces_above_a_limit(device: torch.device) -> Any:
    forces = torch.ones(4, 2, 3, device=device)
    return (forces.norm(dim=-1).max(dim=1)[0] > 1.0).float() * -1.0


@snippet
def curriculum_by_a_mean(device: torch.device) -> Any:
    success = torch.ones(4, device=device)
    level = 2 if success.mean() > 0.5 else 1  # wait
    return torch.full((4,), float(level), device=device)


@snippet
def log_of_means(device: torch.device) -> Any:
    terms = {"alive": torch.ones(4, device=device), "torque": torch.zeros(4, device=device)}
    return {name: term.mean() for name, term in terms.items()}


@snippet
def log_of_read_means(device: torch.device) -> Any:
    terms = {"alive": torch.ones(4, device=device), "torque": torch.zeros(4, device=device)}
    return {name: term.mean().item() for name, term in terms.items()}  # wait


@snippet
def delta_actions(device: torch.device) -> Any:
    state, action = torch.ones(2, 3, device=device), torch.zeros(2, 3, device=device)
    mask = torch.ones(3, dtype=torch.bool, device=device)
    return action + torch.where(mask, state, torch.zeros_like(state))


@snippet
def delta_actions_by_a_mask(device: torch.device) -> Any:
    state, action = torch.ones(2, 3, device=device), torch.zeros(2, 3, device=device)
    mask = torch.arange(3, device=device) < 2
    action[:, mask] += state[:, mask]  # wait
    return action


@snippet
def pad_and_concatenate(device: torch.device) -> Any:
    x = torch.ones(2, 3, device=device)
    return torch.cat([functional.pad(x, (0, 2)), torch.zeros(2, 5, device=device)], dim=-1)


@snippet
def batch_of_tokens(device: torch.device) -> Any:
    tokens = torch.tensor([[1, 2, 0]], device=device)  # wait
    return tokens != 0


@snippet
def action_chunk(device: torch.device) -> Any:
    chunk = torch.arange(12.0, device=device).view(4, 3)
    return [chunk[step] for step in range(4)]


@snippet
def temporal_ensemble(device: torch.device) -> Any:
    weights = torch.exp(-0.1 * torch.arange(3, device=device))
    return (torch.ones(3, 2, device=device) * (weights / weights.sum()).unsqueeze(-1)).sum(0)


@snippet
def reward_sum_with_reset(device: torch.device) -> Any:
    total, done = torch.ones(3, 1, device=device), torch.zeros(3, 1, device=device)
    return total * (1 - done) + torch.ones(3, 1, device=device)


@snippet
def reward_clipping(device: torch.device) -> Any:
    return torch.sign(torch.arange(-2.0, 2.0, device=device))


@snippet
def finite_check_by_error(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    if not torch.isfinite(x).all().item():  # wait
        raise ValueError("not finite")
    return x


@snippet
def nan_to_num(device: torch.device) -> Any:
    return torch.nan_to_num(torch.ones(2, device=device) / 0)


# Random numbers.


@snippet
def multiply_by_noise_of_the_host(device: torch.device) -> Any:
    noise = torch.ones(2)
    return torch.zeros(2, device=device) + noise.to(device)  # wait


@snippet
def bernoulli_by_comparison(device: torch.device) -> Any:
    return torch.full((4,), 0.5, device=device) < 0.2


# Training.


@snippet
def gradient_step(device: torch.device) -> Any:
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad  # type: ignore[operator]
    return weight.detach()


@snippet
def clip_gradient_norm(device: torch.device) -> Any:
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    return nn.utils.clip_grad_norm_([weight], 1.0)


@snippet
def loss_in_a_progress_bar(device: torch.device) -> Any:
    loss = torch.ones((), device=device)
    return f"{loss.item():.3f}"  # wait


@snippet
def synchronize_before_timing(device: torch.device) -> Any:
    x = torch.ones(2, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize()  # wait
    return x


@snippet
def advantage_normalization(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return (a - a.mean()) / (a.std() + 1e-8)


@snippet
def early_stopping_by_kl(device: torch.device) -> Any:
    kl = torch.ones(4, device=device).mean()
    return "stop" if kl > 0.02 else "go"  # wait


@snippet
def minibatches_by_a_permutation_of_the_host(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device)
    order = torch.arange(5, -1, -1)
    return x[order]  # wait


@snippet
def matrix_inverse(device: torch.device) -> Any:
    return torch.linalg.inv(torch.eye(2, device=device))  # wait


@snippet
def matrix_product(device: torch.device) -> Any:
    return torch.eye(2, device=device) @ torch.ones(2, 2, device=device)


# The programs from here on were written, with their marks, before the detector was tried on them.


@snippet
def normalizer_step_with_statistics_moved_per_call(device: torch.device) -> Any:
    statistics = {"mean": torch.zeros(6), "std": torch.ones(6)}
    batch = {"observation.state": torch.ones(2, 6, device=device)}
    moved = {name: value.to(device) for name, value in statistics.items()}  # wait
    state = batch["observation.state"]
    batch["observation.state"] = (state - moved["mean"]) / (moved["std"] + 1e-8)
    return batch


@snippet
def min_max_normalizer_with_constant_features(device: torch.device) -> Any:
    low, high = torch.zeros(6, device=device), torch.arange(6.0, device=device)
    width = high - low
    width = torch.where(width == 0, torch.full_like(width, 1e-8), width)
    return 2 * (torch.ones(2, 6, device=device) - low) / width - 1


@snippet
def image_step_that_checks_its_range(device: torch.device) -> Any:
    image = torch.full((1, 3, 4, 4), 255.0, device=device)
    if image.max() > 1.0:  # wait
        image = image / 255.0
    return image


@snippet
def queue_of_actions(device: torch.device) -> Any:
    queue: list[Tensor] = []
    played = []
    for _ in range(4):
        if len(queue) == 0:
            queue.extend(torch.arange(6.0, device=device).view(2, 1, 3).unbind(0))
        played.append(queue.pop(0).squeeze(0))
    return torch.stack(played).to("cpu").numpy()  # wait


@snippet
def batch_to_device_without_blocking(device: torch.device) -> Any:
    batch = {"action": torch.ones(2, 3), "task": "pick"}
    return {
        key: value.to(device, non_blocking=device.type == "cuda")
        if isinstance(value, Tensor)
        else value
        for key, value in batch.items()
    }


@snippet
def padded_history_of_observations(device: torch.device) -> Any:
    frames = [torch.full((1, 3), float(step), device=device) for step in range(2)]
    while len(frames) < 4:
        frames.insert(0, frames[0].clone())
    return torch.cat(frames, dim=0).unsqueeze(0)


@snippet
def reset_of_a_manager_based_env(device: torch.device) -> Any:
    positions, defaults = torch.ones(4, 2, device=device), torch.zeros(4, 2, device=device)
    actions = torch.ones(4, 2, device=device)
    terminated = torch.arange(4, device=device) > 2
    timeouts = torch.arange(4, device=device) < 1
    env_ids = (terminated | timeouts).nonzero(as_tuple=False).squeeze(-1)  # wait
    positions[env_ids] = defaults[env_ids]
    actions[env_ids] = 0.0  # wait
    return positions, actions


@snippet
def logged_sums_of_episodes(device: torch.device) -> Any:
    sums = {"alive": torch.ones(4, device=device)}
    env_ids = torch.arange(2, device=device)
    extras = {}
    for name in sums:
        extras[name] = torch.mean(sums[name][env_ids]) / 20.0
        sums[name][env_ids] = 0.0  # wait
    return extras


@snippet
def terrain_levels(device: torch.device) -> Any:
    levels = torch.arange(4, device=device)
    env_ids = torch.arange(2, device=device)
    distance = torch.ones(2, device=device)
    move_up = distance > 0.5
    move_down = (distance < 0.2) * ~move_up
    levels[env_ids] += 1 * move_up - 1 * move_down
    return torch.where(levels >= 3, torch.zeros_like(levels), levels.clip(min=0))


@snippet
def contacts_of_bodies_by_a_list(device: torch.device) -> Any:
    forces, bodies = torch.ones(4, 2, 3, 3, device=device), [0, 2]
    norms = torch.norm(forces[:, :, bodies], dim=-1)  # wait
    return torch.any(torch.max(norms, dim=1)[0] > 1.0, dim=1)


@snippet
def contacts_of_bodies_by_a_slice(device: torch.device) -> Any:
    forces = torch.ones(4, 2, 3, 3, device=device)
    return torch.any(torch.max(torch.norm(forces[:, :, 0:2], dim=-1), dim=1)[0] > 1.0, dim=1)


@snippet
def scale_of_observation_terms(device: torch.device) -> Any:
    scale = torch.tensor((2.0, 2.0, 0.25), device=device)  # wait
    terms = [torch.ones(4, 3, device=device) * scale, torch.zeros(4, 2, device=device)]
    return torch.cat(terms, dim=-1).clip(-100.0, 100.0)


@snippet
def command_that_stands_still(device: torch.device) -> Any:
    command = torch.arange(8.0, device=device).view(4, 2)
    command *= (torch.norm(command[:, :2], dim=1) > 2.0).unsqueeze(1)
    return command


@snippet
def one_element_is_set(device: torch.device) -> Any:
    gains = torch.zeros(3, device=device)
    gains[1] = 2.0  # wait
    return gains


@snippet
def one_row_is_set(device: torch.device) -> Any:
    gains = torch.zeros(3, 2, device=device)
    gains[1] = 2.0
    return gains


@snippet
def element_at_an_index_of_the_device(device: torch.device) -> Any:
    rewards = torch.arange(4.0, device=device)
    best = rewards.argmax()
    return rewards[best]  # wait


@snippet
def elements_at_indices_of_the_device(device: torch.device) -> Any:
    values = torch.arange(6.0, device=device).view(2, 3)
    best = values.argmax(-1, keepdim=True)
    return values.gather(-1, best)


@snippet
def generalized_advantages(device: torch.device) -> Any:
    rewards, values = torch.ones(4, 2, device=device), torch.zeros(5, 2, device=device)
    not_done = 1 - (torch.arange(4, device=device) == 2).float().unsqueeze(-1)
    advantage = torch.zeros(2, device=device)
    advantages: list[Tensor] = []
    for t in reversed(range(4)):
        delta = rewards[t] + 0.99 * values[t + 1] * not_done[t] - values[t]
        advantage = delta + 0.99 * 0.95 * not_done[t] * advantage
        advantages.insert(0, advantage)
    return torch.stack(advantages)


@snippet
def prioritized_batch_with_replacement(device: torch.device) -> Any:
    weights = torch.ones(8, device=device)
    chosen = torch.multinomial(weights, 4, replacement=True)
    return tuple(chosen.shape)


@snippet
def sampled_action_of_a_categorical_policy(device: torch.device) -> Any:
    probabilities = torch.ones(2, 3, device=device) / 3
    return tuple(torch.multinomial(probabilities, 1).shape)  # wait


@snippet
def priorities_in_bins(device: torch.device) -> Any:
    errors = torch.arange(8.0, device=device)
    return errors.histc(bins=4, min=0.0, max=8.0)


@snippet
def priorities_in_bins_of_unknown_range(device: torch.device) -> Any:
    errors = torch.arange(8.0, device=device)
    return errors.histc(bins=4)  # wait


@snippet
def wrapper_for_a_policy_in_numpy(device: torch.device) -> Any:
    class ToNumpy:
        def observation(self, observation: dict[str, Tensor]) -> dict[str, Any]:
            return {key: value.numpy(force=True) for key, value in observation.items()}  # wait

    return ToNumpy().observation({"state": torch.ones(3, device=device)})


@snippet
def wrapper_that_converts_actions_and_rewards(device: torch.device) -> Any:
    class ToTorch:
        def step(self, action: Tensor) -> tuple[Tensor, float, bool]:
            given = action.detach().cpu().numpy()  # wait
            observation = np.ones(3, np.float32) * given.sum()
            moved = torch.from_numpy(observation)
            if device.type == "cuda":  # only a driver of CUDA can pin memory
                moved = moved.pin_memory().to(device, non_blocking=True)
            return moved, float(given[0]), bool(given.max() > 2)

    return ToTorch().step(torch.ones(3, device=device))


@snippet
def wrapper_that_records_finished_envs(device: torch.device) -> Any:
    class Statistics:
        def __init__(self) -> None:
            self.returns = torch.zeros(3, device=device)
            self.finished: list[float] = []

        def step(self, reward: Tensor, done: Tensor) -> None:
            self.returns += reward
            for env in range(3):
                if done[env]:  # wait
                    self.finished.append(float(self.returns[env]))  # wait
            self.returns *= ~done

    wrapper = Statistics()
    wrapper.step(torch.ones(3, device=device), torch.arange(3, device=device) > 1)
    return wrapper.finished


@snippet
def loop_over_a_number_of_the_device(device: torch.device) -> Any:
    length = torch.full((), 3, dtype=torch.int64, device=device)
    total = torch.zeros((), device=device)
    for _ in range(length):  # wait
        total += 1
    return total


@snippet
def prefix_of_a_length_of_the_device(device: torch.device) -> Any:
    length = torch.full((), 3, dtype=torch.int64, device=device)
    return torch.arange(5.0, device=device)[:length]  # wait


@snippet
def larger_of_two_values(device: torch.device) -> Any:
    best, score = torch.zeros((), device=device), torch.ones((), device=device)
    return torch.maximum(best, score), max(best, score)  # wait


@snippet
def scattered_values_of_a_mask(device: torch.device) -> Any:
    x = torch.zeros(4, device=device)
    return x.masked_scatter(torch.arange(4, device=device) > 1, torch.ones(2, device=device))


@snippet
def covariance_factor(device: torch.device) -> Any:
    return torch.linalg.cholesky(torch.eye(3, device=device) * 4)  # wait


@snippet
def closest_rotation(device: torch.device) -> Any:
    u, _, v = torch.linalg.svd(torch.eye(3, device=device))  # wait
    return (u @ v).det()


@snippet
def step_of_adam(device: torch.device) -> Any:
    weight = torch.ones(2, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    (weight * 3).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return weight.detach()


@snippet
def clipping_that_checks_for_finite_gradients(device: torch.device) -> Any:
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    return nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)  # wait


@snippet
def weights_of_a_checkpoint(device: torch.device) -> Any:
    layer = nn.Linear(2, 1, bias=False).to(device)  # wait
    layer.load_state_dict({"weight": torch.ones(1, 2)})  # wait
    return {name: value.cpu() for name, value in layer.state_dict().items()}  # wait


# A second set, written before it was tried too, after the causes of the first were removed.


@snippet
def quantile_normalizer_with_statistics_on_the_device(device: torch.device) -> Any:
    low, high = torch.zeros(6, device=device), torch.ones(6, device=device)
    scaled = 2 * (torch.ones(2, 6, device=device) - low) / (high - low).clamp(min=1e-8) - 1
    return scaled.clamp(-1, 1)


@snippet
def observation_step_that_builds_images(device: torch.device) -> Any:
    frames = np.zeros((8, 8, 3), np.uint8)
    image = torch.from_numpy(frames).permute(2, 0, 1).unsqueeze(0)
    return image.to(device).float() / 255  # wait


@snippet
def chunk_whose_length_is_read(device: torch.device) -> Any:
    chunk = torch.arange(12.0, device=device).view(4, 3)
    valid = torch.arange(4, device=device) < 3
    steps = int(valid.sum())  # wait
    return chunk[:steps]


@snippet
def delay_buffer_by_a_remainder(device: torch.device) -> Any:
    buffer = torch.zeros(3, 4, device=device)
    for step in range(5):
        buffer[step % 3] = torch.full((4,), float(step), device=device)
    return buffer.roll(1, dims=0)


@snippet
def reward_terms_weighted_by_python_numbers(device: torch.device) -> Any:
    terms = {"track": torch.ones(4, device=device), "energy": torch.ones(4, device=device)}
    total = torch.zeros(4, device=device)
    for name, weight in {"track": 1.0, "energy": -0.01}.items():
        total += terms[name] * weight * 0.02
    return torch.exp(-total.square() / 0.25)


@snippet
def ids_that_are_counted_before_a_reset(device: torch.device) -> Any:
    reset = torch.arange(4, device=device) > 1
    ids = reset.nonzero()[:, 0]  # wait
    if ids.numel() == 0:
        return ids
    state = torch.ones(4, 3, device=device)
    state[ids, :2] = 0  # wait
    return state


@snippet
def masked_update_of_a_history(device: torch.device) -> Any:
    history, done = torch.ones(4, 3, device=device), torch.arange(4, device=device) > 1
    history *= (~done).unsqueeze(-1)
    history.masked_fill_(done.unsqueeze(-1), -1.0)
    return history.where(history > 0, torch.zeros((), device=device))


@snippet
def batch_without_finished_rows(device: torch.device) -> Any:
    batch = {"state": torch.ones(4, 2, device=device), "reward": torch.ones(4, device=device)}
    keep = torch.arange(4, device=device) != 2
    return {key: value[keep] for key, value in batch.items()}  # wait


@snippet
def minibatches_by_a_permutation_of_the_device(device: torch.device) -> Any:
    data = torch.arange(8.0, device=device)
    order = torch.arange(7, -1, -1, device=device)
    return [data[part].sum() for part in order.split(4)]


@snippet
def value_loss_with_a_clipped_ratio(device: torch.device) -> Any:
    ratio, advantage = torch.ones(4, device=device) * 1.5, torch.ones(4, device=device)
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    clipped = ((ratio - 1).abs() > 0.2).float().mean()
    return {"loss": loss.item(), "clipped": clipped.item()}  # wait


@snippet
def target_network_by_averages(device: torch.device) -> Any:
    online, target = torch.ones(3, device=device), torch.zeros(3, device=device)
    with torch.no_grad():
        target.lerp_(online, 0.005)
        target.mul_(0.995).add_(online, alpha=0.005)
    return target


@snippet
def episode_info_as_in_a_vector_env(device: torch.device) -> Any:
    done, length = torch.arange(3, device=device) > 1, torch.arange(3, device=device)
    infos = {}
    for index in torch.where(done)[0].tolist():  # wait
        infos[index] = length[index].item()  # wait
    return infos


@snippet
def reward_clip_wrapper(device: torch.device) -> Any:
    class Clip:
        def reward(self, reward: Tensor) -> Tensor:
            return reward.clip(-1, 1) if reward.ndim else reward

    return Clip().reward(torch.arange(3.0, device=device))


@snippet
def time_limit_wrapper_with_a_tensor_counter(device: torch.device) -> Any:
    class Limit:
        def __init__(self) -> None:
            self.count = torch.zeros(2, dtype=torch.int64, device=device)

        def step(self) -> tuple[Tensor, bool]:
            self.count += 1
            truncated = self.count >= 3
            return truncated, bool(truncated.all())  # wait

    limit = Limit()
    return [limit.step() for _ in range(3)]


@snippet
def one_hot_of_discrete_observations(device: torch.device) -> Any:
    observation = torch.arange(3, device=device)
    eye = torch.eye(4, device=device)
    return eye[observation]


@snippet
def running_variance_over_a_batch(device: torch.device) -> Any:
    count = torch.full((), 1e-4, device=device)
    mean, variance = torch.zeros(2, device=device), torch.ones(2, device=device)
    x = torch.arange(8.0, device=device).view(4, 2)
    batch_variance, batch_mean = torch.var_mean(x, dim=0, unbiased=False)
    delta, total = batch_mean - mean, count + 4
    squares = variance * count + batch_variance * 4 + delta.square() * count * 4 / total
    return mean + delta * 4 / total, squares / total


@snippet
def actions_within_the_limits_of_joints(device: torch.device) -> Any:
    limits = np.array([[-1.0, 1.0], [-2.0, 2.0]], np.float32)
    low, high = torch.tensor(limits, device=device).unbind(-1)  # wait
    return torch.zeros(3, 2, device=device).clamp(low, high)


@snippet
def assertion_about_shapes(device: torch.device) -> Any:
    action = torch.zeros(3, 2, device=device)
    assert action.shape[-1] == 2, f"{action}"
    return action.isnan().any(-1)


@snippet
def recurrent_policy(device: torch.device) -> Any:
    layers = nn.LSTM(2, 3), nn.GRU(3, 3)
    x = torch.ones(4, 1, 2, device=device)
    for layer in layers:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(0.1)
        layer.to(device)  # wait
        x, _ = layer(x)
    return x.detach()


# A third set, written before it was tried too.


@snippet
def statistics_of_imagenet(device: torch.device) -> Any:
    image = torch.ones(1, 3, 2, 2, device=device)
    mean = torch.tensor([0.5, 0.25, 0.125]).view(1, 3, 1, 1)
    return image - mean.to(image.device)  # wait


@snippet
def loss_without_padded_actions(device: torch.device) -> Any:
    is_pad = torch.arange(4, device=device) > 2
    error = torch.ones(2, 4, 3, device=device)
    valid = (~is_pad).view(1, 4, 1)
    return (error * valid).sum() / (valid.sum() * 6).clamp(min=1)


@snippet
def closed_gripper_by_a_threshold(device: torch.device) -> Any:
    action = torch.arange(4.0, device=device) / 4
    return torch.where(action > 0.4, 1.0, 0.0)


@snippet
def history_padded_with_a_value_of_the_host(device: torch.device) -> Any:
    history, is_pad = torch.ones(4, device=device), torch.arange(4, device=device) > 1
    return torch.where(is_pad, torch.zeros(()), history)  # wait


@snippet
def positions_of_tokens(device: torch.device) -> Any:
    attends = torch.arange(5, device=device) < 3
    positions = attends.cumsum(0) - 1
    return positions.masked_fill(~attends, 0)


@snippet
def attention_scores_filled_with_their_minimum(device: torch.device) -> Any:
    scores, hidden = torch.arange(4.0, device=device), torch.arange(4, device=device) > 2
    return scores.masked_fill(hidden, scores.min())  # wait


@snippet
def sample_from_a_data_set(device: torch.device) -> Any:
    state = torch.arange(3.0).cpu().numpy()
    batch = torch.stack([torch.from_numpy(state), torch.zeros(3)])
    return batch.to(device)  # wait


@snippet
def number_of_elements_of_a_shape(device: torch.device) -> Any:
    x = torch.ones(2, 3, device=device)
    size = torch.tensor(x.shape).prod().item()
    return x.reshape(int(size))


@snippet
def losses_of_a_dict(device: torch.device) -> Any:
    losses = {"l1": torch.ones(3, device=device).mean(), "kl": torch.zeros(3, device=device).sum()}
    total = losses["l1"] + 10.0 * losses["kl"]
    return total, {f"loss/{name}": float(value.detach()) for name, value in losses.items()}  # wait


@snippet
def loss_in_a_message_that_is_not_logged(device: torch.device) -> Any:
    loss = torch.ones(3, device=device).mean()
    logging.getLogger("tests.accelerators").debug("loss %s", loss)
    return loss


@snippet
def actions_of_a_policy_for_a_robot(device: torch.device) -> Any:
    action = torch.arange(6.0, device=device).view(1, 2, 3)[:, 0].squeeze(0)
    names = ["shoulder", "elbow", "gripper"]
    return {name: action[index].item() for index, name in enumerate(names)}  # wait


@snippet
def checkpoint_in_memory(device: torch.device) -> Any:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2, device=device)}, file)  # wait
    return file.tell() > 0


@snippet
def due_interval_events(device: torch.device) -> Any:
    left = torch.arange(4.0, device=device) - 0.5
    left -= 0.02
    due = left < 1e-6
    if due.sum() > 0:  # wait
        left = torch.where(due, torch.full_like(left, 3.0), left)
    return left


@snippet
def interval_events_by_selection(device: torch.device) -> Any:
    left = torch.arange(4.0, device=device) - 0.52
    return torch.where(left < 1e-6, torch.full_like(left, 3.0), left)


@snippet
def buffers_of_given_envs(device: torch.device) -> Any:
    buffer, env_ids = torch.ones(4, 2, device=device), None
    rows = slice(None) if env_ids is None else env_ids
    buffer[rows] = 0.0
    return buffer


@snippet
def default_state_of_given_envs(device: torch.device) -> Any:
    state, default = torch.ones(4, 2, device=device), torch.zeros(4, 2, device=device)
    env_ids = torch.arange(2, device=device)
    state[env_ids] = default[env_ids].clone()
    return state


@snippet
def ids_of_joints_by_name(device: torch.device) -> Any:
    chosen = [index for index, name in enumerate("abc") if name != "b"]
    ids = torch.tensor(chosen, device=device)  # wait
    return torch.arange(6.0, device=device).view(2, 3)[:, ids]


@snippet
def joints_by_an_array_of_indices(device: torch.device) -> Any:
    positions = torch.arange(6.0, device=device).view(2, 3)
    return positions[:, np.array([2, 0])]  # wait


@snippet
def joints_by_a_list_of_flags(device: torch.device) -> Any:
    positions = torch.arange(3.0, device=device)
    return positions[[True, False, True]]  # wait


@snippet
def terminations_by_cause(device: torch.device) -> Any:
    causes = {
        "fall": torch.arange(3, device=device) > 1,
        "limit": torch.arange(3, device=device) > 5,
    }
    return {name: torch.count_nonzero(flag).item() for name, flag in causes.items()}  # wait


@snippet
def unique_sign_of_quaternions(device: torch.device) -> Any:
    q = torch.arange(-4.0, 4.0, device=device).view(2, 4)
    return torch.where(q[:, 0:1] < 0, -q, q) / q.norm(dim=-1, keepdim=True)


@snippet
def outliers_become_the_mean(device: torch.device) -> Any:
    height = torch.arange(4.0, device=device)
    height[height > 2] = height.mean()  # wait
    return height


@snippet
def gains_scaled_by_a_value_of_the_device(device: torch.device) -> Any:
    scale = torch.ones(3, device=device).mean()
    return torch.full((4,), scale, device=device)  # type: ignore[call-overload] # wait


@snippet
def target_moved_by_a_rate_of_the_device(device: torch.device) -> Any:
    target, rate = torch.zeros(3, device=device), torch.full((), 0.5, device=device)
    return target.add(torch.ones(3, device=device), alpha=rate)  # type: ignore[arg-type] # wait


@snippet
def target_moved_by_a_product(device: torch.device) -> Any:
    target, rate = torch.zeros(3, device=device), torch.full((), 0.5, device=device)
    return target.addcmul(torch.ones(3, device=device), rate)


@snippet
def push_of_robots_by_their_mass(device: torch.device) -> Any:
    mass = torch.ones(4, 1, device=device) * 2
    force = torch.zeros(4, 3, device=device).index_add_(1, torch.arange(1, device=device), mass)
    return math.sqrt(force.square().sum())  # wait


@snippet
def tensordict_moved_to_the_device(device: torch.device) -> Any:
    data = TensorDict(observation=torch.ones(2, 3), reward=torch.zeros(2, 1), batch_size=[2])
    return data.to(device)["observation"]


@snippet
def entry_of_a_tensordict_on_the_device(device: torch.device) -> Any:
    data = TensorDict(batch_size=[2], device=device)
    data["observation"] = torch.ones(2, 3)  # wait
    return data["observation"]


@snippet
def rows_of_a_tensordict_by_a_mask(device: torch.device) -> Any:
    data: Any = TensorDict(a=torch.arange(3.0, device=device), batch_size=[3])
    data["b"] = data["a"] + 1
    rows = data[data["a"] > 0.5]  # wait
    return rows["b"]


@snippet
def functions_of_a_tensordict(device: torch.device) -> Any:
    data = TensorDict(a=torch.ones(3, 2, device=device), batch_size=[3])
    data = data.apply(lambda value: value * 2).update({"b": data["a"].sum(-1)})
    pair: Any = torch.stack([data, data.clone()])
    return pair["b"]


@snippet
def next_root_by_selection(device: torch.device) -> Any:
    done = torch.arange(3, device=device).unsqueeze(-1) > 1
    root = TensorDict(a=torch.ones(3, 1, device=device), batch_size=[3])
    fresh = TensorDict(a=torch.zeros(3, 1, device=device), batch_size=[3])
    return fresh.where(done.squeeze(-1), root)["a"]


@snippet
def action_of_a_categorical_distribution(device: torch.device) -> Any:
    policy = torch.distributions.Categorical(  # wait
        logits=torch.zeros(2, 3, device=device), validate_args=True
    )
    return tuple(policy.sample().shape)  # wait


@snippet
def action_of_an_unchecked_normal_distribution(device: torch.device) -> Any:
    mean, scale = torch.zeros(2, device=device), torch.ones(2, device=device)
    policy = torch.distributions.Normal(mean, scale, validate_args=False)
    return tuple(policy.rsample().shape), policy.log_prob(mean + 1)


@snippet
def trajectories_of_several_lengths(device: torch.device) -> Any:
    steps, lengths = torch.arange(6.0, device=device), torch.arange(1, 4, device=device)
    return [part.sum() for part in steps.split(lengths.tolist())]  # wait


@snippet
def packed_sequences(device: torch.device) -> Any:
    lengths = torch.arange(3, 1, -1, device=device)
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 3, 1, device=device),
        lengths.cpu(),  # wait
        batch_first=True,
    )
    return packed.data


@snippet
def wrapper_that_scales_a_reward_on_the_host(device: torch.device) -> Any:
    class Scale:
        def step(self, action: Tensor) -> tuple[Tensor, float]:
            reward = torch.tensor(2.0) * 3
            observation = torch.zeros(3, device=device) + action
            return observation, float(reward.cpu().item())

    return Scale().step(torch.ones(3, device=device))


@snippet
def wrapper_that_stops_when_all_envs_ended(device: torch.device) -> Any:
    class Ends:
        def __init__(self) -> None:
            self.ended = torch.zeros(2, dtype=torch.bool, device=device)

        def step(self, done: Tensor) -> bool:
            self.ended |= done
            return self.ended.all().item() is True  # wait

    return Ends().step(torch.ones(2, dtype=torch.bool, device=device))


@snippet
def wrapper_with_an_array_of_rewards(device: torch.device) -> Any:
    rewards = torch.arange(3.0, device=device)
    return np.array([reward.item() for reward in rewards])  # wait


@snippet
def best_of_several_returns(device: torch.device) -> Any:
    returns = [torch.full((), float(value), device=device) for value in (2, 0, 1)]
    return sorted(returns)  # wait


@snippet
def linear_system_of_a_controller(device: torch.device) -> Any:
    inertia = torch.eye(3, device=device) * 2
    return torch.linalg.solve(inertia, torch.ones(3, device=device))  # wait


@snippet
def times_up_to_a_value_of_the_device(device: torch.device) -> Any:
    count = torch.full((), 4, dtype=torch.int64, device=device)
    return torch.arange(count, device=device)  # type: ignore[call-overload] # wait


# A fourth set, written before it was tried, after the causes of the third were removed.


@snippet
def mean_and_std_normalizer_as_buffers(device: torch.device) -> Any:
    class Normalize(nn.Module):
        mean: Tensor
        std: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("std", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.mean) / (self.std + 1e-8)

    module = Normalize().to(device)  # wait
    return module(torch.ones(2, 3, device=device))


@snippet
def relative_actions_on_the_device(device: torch.device) -> Any:
    state, action = torch.ones(2, 1, 3, device=device), torch.zeros(2, 4, 3, device=device)
    return torch.cat([action[..., :2] - state[..., :2], action[..., 2:]], dim=-1)


@snippet
def clipped_quantiles_with_a_warning(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    outside = (x > 2).float().mean()
    if outside.item() > 0.9:  # wait
        raise ValueError("most values are outside")
    return x.clip(max=2)


@snippet
def sample_with_a_batch_dim(device: torch.device) -> Any:
    sample = {"state": torch.ones(3), "task": ["pick"]}
    return {
        key: value.unsqueeze(0).to(device, torch.float32)  # wait
        if isinstance(value, Tensor)
        else value
        for key, value in sample.items()
    }


@snippet
def images_of_several_cameras(device: torch.device) -> Any:
    images = [torch.ones(1, 3, 4, 4, device=device) for _ in range(2)]
    stacked = torch.stack(images, dim=1).flatten(0, 1)
    return functional.avg_pool2d(stacked, 2).view(1, 2, 3, 2, 2)


@snippet
def masked_mean_of_a_loss(device: torch.device) -> Any:
    loss, valid = torch.ones(4, device=device), torch.arange(4, device=device) < 3
    return loss[valid].mean()  # wait


@snippet
def first_frame_of_each_episode(device: torch.device) -> Any:
    episode = torch.arange(6, device=device) // 3
    changes = torch.cat([torch.ones(1, dtype=torch.bool, device=device), episode.diff() > 0])
    return changes.nonzero(as_tuple=True)[0]  # wait


@snippet
def randomized_friction_of_given_envs(device: torch.device) -> Any:
    friction = torch.ones(4, device=device)
    env_ids = torch.arange(2, device=device)
    friction[env_ids] = torch.zeros(len(env_ids), device=device) * 0.5 + 0.25
    return friction


@snippet
def tracking_reward(device: torch.device) -> Any:
    command, velocity = torch.ones(4, 3, device=device), torch.zeros(4, 3, device=device)
    error = torch.sum(torch.square(command[:, :2] - velocity[:, :2]), dim=1)
    return torch.exp(-error / 0.25) * (torch.norm(command[:, :2], dim=1) > 0.1)


@snippet
def timeouts_and_failures(device: torch.device) -> Any:
    length = torch.arange(4, device=device) + 8
    height = torch.arange(4.0, device=device)
    timed_out = length >= 10
    died = torch.any(height.unsqueeze(-1) < 0.5, dim=1)
    return died | timed_out, {"time_outs": timed_out}


@snippet
def cameras_that_are_due(device: torch.device) -> Any:
    timestamp = torch.arange(3.0, device=device)
    outdated = torch.ones(3, dtype=torch.bool, device=device)
    ids = outdated.nonzero().squeeze(-1)  # wait
    timestamp[ids] += 0.02
    return timestamp


@snippet
def observation_noise(device: torch.device) -> Any:
    noise = torch.zeros(4, 3, device=device)
    return torch.ones(4, 3, device=device) + noise * 0.1 - noise.new_full((3,), 0.5)


@snippet
def gae_over_a_tensordict(device: torch.device) -> Any:
    data = TensorDict(
        reward=torch.ones(3, 2, device=device),
        done=torch.zeros(3, 2, device=device).bool(),
        batch_size=[3, 2],
    )
    advantage = torch.zeros(2, device=device)
    rows: list[Tensor] = []
    for step in reversed(list(data.unbind(0))):
        advantage = step["reward"] + 0.9 * advantage * ~step["done"]
        rows.insert(0, advantage)
    return torch.stack(rows)


@snippet
def rollout_copied_to_the_host(device: torch.device) -> Any:
    data = TensorDict(reward=torch.ones(3, device=device), batch_size=[3])
    return data.cpu()["reward"]  # wait


@snippet
def stop_at_the_first_done(device: torch.device) -> Any:
    data = TensorDict(done=torch.arange(3, device=device) > 4, batch_size=[3])
    steps = 0
    while steps < 2:
        steps += 1
        if data["done"].any():  # wait
            break
    return steps


@snippet
def priorities_of_a_batch(device: torch.device) -> Any:
    error = torch.arange(4.0, device=device)
    priority = (error.abs() + 1e-6).pow(0.6)
    weights = (priority / priority.sum()).pow(-0.4)
    return (weights / weights.max()).cpu().numpy().shape  # wait


@snippet
def wrapper_that_stacks_frames(device: torch.device) -> Any:
    class Stack:
        def __init__(self) -> None:
            self.frames = [torch.zeros(3, device=device)] * 4

        def observation(self, frame: Tensor) -> Tensor:
            self.frames = [*self.frames[1:], frame]
            return torch.stack(self.frames)

    return Stack().observation(torch.ones(3, device=device))


@snippet
def wrapper_that_reports_returns(device: torch.device) -> Any:
    class Report:
        def __init__(self) -> None:
            self.total = torch.zeros(2, device=device)

        def step(self, reward: Tensor, terminated: Tensor) -> dict[str, Any]:
            self.total += reward
            ended = terminated.cpu().numpy()  # wait
            returns = self.total.cpu().numpy()[ended].tolist() if ended.any() else []  # wait
            return {"returns": returns}

    return Report().step(torch.ones(2, device=device), torch.arange(2, device=device) > 0)


@snippet
def wrapper_around_an_env_in_numpy(device: torch.device) -> Any:
    class FromNumpy:
        def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
            given = action.detach().to("cpu").numpy()  # wait
            observation, reward = given * 2.0, np.float32(given.sum())
            return (
                torch.as_tensor(observation, device=device),  # wait
                torch.tensor(reward, device=device),  # wait
            )

    return FromNumpy().step(torch.ones(3, device=device))


@snippet
def schedule_by_a_counter_of_the_host(device: torch.device) -> Any:
    step = torch.tensor(5)
    rate = max(0.1, 1.0 - step.item() / 10)
    return torch.ones(3, device=device) * rate


# A fifth set, written before it was tried, after the causes of the fourth were removed.


@snippet
def columns_by_a_list(device: torch.device) -> Any:
    state = torch.arange(12.0, device=device).view(3, 4)
    return state[:, [0, 2]]  # wait


@snippet
def joints_by_an_array(device: torch.device) -> Any:
    positions = torch.arange(6.0, device=device)
    joints = np.array([1, 4])
    return positions[joints]  # wait


@snippet
def joints_by_a_slice_and_none(device: torch.device) -> Any:
    positions = torch.arange(6.0, device=device)
    return positions[1:5:2][None, ..., None]


@snippet
def gains_of_named_joints(device: torch.device) -> Any:
    stiffness = torch.zeros(2, 4, device=device)
    for name, value in {"hip": 25.0, "knee": 40.0}.items():
        index = ["hip", "thigh", "calf", "knee"].index(name)
        stiffness[:, index] = value
    return stiffness


@snippet
def one_return_of_a_host_number(device: torch.device) -> Any:
    returns = torch.zeros(4, device=device)
    returns[2] = 1.5  # wait
    return returns


@snippet
def one_row_of_a_buffer_is_cleared(device: torch.device) -> Any:
    buffer = torch.ones(4, 3, device=device)
    buffer[2] = 0.0
    return buffer


@snippet
def frames_of_the_host_in_a_buffer(device: torch.device) -> Any:
    buffer = torch.zeros(4, 3, device=device)
    for step in range(2):
        frame = np.full(3, step, dtype=np.float32)
        buffer[step] = torch.from_numpy(frame)  # wait
    return buffer


@snippet
def masked_column_is_set_to_a_number(device: torch.device) -> Any:
    buffer = torch.ones(4, 3, device=device)
    mask = torch.arange(4, device=device) > 1
    buffer[mask, 0] = 0.0
    return buffer


@snippet
def masked_rows_are_increased(device: torch.device) -> Any:
    length = torch.zeros(4, device=device)
    mask = torch.arange(4, device=device) > 1
    length[mask] += 1  # wait
    return length


@snippet
def resampled_commands(device: torch.device) -> Any:
    torch.manual_seed(0)
    commands = torch.zeros(4, 3, device=device)
    env_ids = torch.arange(2, device=device)
    commands[env_ids, 0] = torch.empty(len(env_ids), device=device).uniform_(-1.0, 1.0)
    commands[env_ids, 2] *= torch.abs(commands[env_ids, 0]) > 0.2
    return commands


@snippet
def terrain_levels_up_and_down(device: torch.device) -> Any:
    levels = torch.arange(4, device=device)
    distance = torch.arange(4.0, device=device)
    env_ids = torch.arange(1, 3, device=device)
    up = distance[env_ids] > 1
    down = ~up
    levels[env_ids] += 1 * up - 1 * down
    return torch.where(levels >= 3, torch.zeros_like(levels), levels.clip(min=0))


@snippet
def heights_around_the_robots(device: torch.device) -> Any:
    heights = torch.arange(25.0, device=device).view(5, 5)
    points = torch.tensor([[0.4, 1.2], [3.0, 2.6]], device=device)  # wait
    pixels = torch.clip(points.round().long(), 0, 3)
    corners = [heights[pixels[:, 0] + x, pixels[:, 1]] for x in (0, 1)]
    return torch.minimum(*corners)


@snippet
def mean_of_the_sums_of_ended_episodes(device: torch.device) -> Any:
    sums = {"tracking": torch.ones(4, device=device), "torque": torch.zeros(4, device=device)}
    env_ids = torch.arange(2, device=device)
    extras = {}
    for key, values in sums.items():
        extras[key] = torch.mean(values[env_ids])
        values[env_ids] = 0.0  # wait
    return extras


@snippet
def check_of_observations(device: torch.device) -> Any:
    observation = torch.ones(4, 3, device=device)
    assert not torch.isnan(observation).any(), "observation is NaN"  # wait
    return observation


@snippet
def contact_forces(device: torch.device) -> Any:
    history = torch.arange(24.0, device=device).view(2, 4, 3)
    contact = torch.max(torch.norm(history, dim=-1), dim=1)[0] > 30.0
    return torch.any(contact.unsqueeze(-1), dim=-1)


@snippet
def rotation_from_six_numbers(device: torch.device) -> Any:
    six = torch.eye(3, device=device)[:2].flatten() + 0.1
    first = functional.normalize(six[:3], dim=-1)
    second = functional.normalize(six[3:] - (first * six[3:]).sum() * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


@snippet
def damped_inverse_of_a_jacobian(device: torch.device) -> Any:
    jacobian = torch.eye(3, device=device)[:2]
    damping = 0.1 * torch.eye(2, device=device)
    return jacobian.T @ torch.inverse(jacobian @ jacobian.T + damping)  # wait


@snippet
def poses_by_matrix_products(device: torch.device) -> Any:
    transform = torch.eye(4, device=device).repeat(2, 1, 1)
    points = torch.ones(2, 5, 4, device=device)
    return torch.einsum("bij,bnj->bni", transform, points)[..., :3]


@snippet
def lengths_of_token_rows(device: torch.device) -> Any:
    attention = torch.arange(6, device=device).view(2, 3) < 4
    return attention.sum(-1).tolist()  # wait


@snippet
def queue_of_an_action_chunk(device: torch.device) -> Any:
    chunk = torch.arange(12.0, device=device).view(1, 4, 3)
    queue = list(chunk.transpose(0, 1))
    return [action.squeeze(0) for action in queue[:2]]


@snippet
def closest_frames_by_timestamp(device: torch.device) -> Any:
    stored = torch.arange(5.0, device=device)
    asked = torch.full((2,), 1.4, device=device)
    distance = torch.cdist(asked[:, None], stored[:, None], p=1)
    nearest, index = distance.min(1)
    if (nearest > 0.5).any():  # wait
        raise ValueError("no frame is close enough")
    return stored[index]


@snippet
def dataset_quantiles(device: torch.device) -> Any:
    values = torch.arange(100.0, device=device).view(50, 2)
    return {"q01": values.quantile(0.01, dim=0), "q99": values.quantile(0.99, dim=0)}


@snippet
def losses_in_a_dict(device: torch.device) -> Any:
    losses = {"l1": torch.ones(2, device=device).mean(), "kl": torch.zeros(2, device=device).mean()}
    total = losses["l1"] + 10 * losses["kl"]
    return {name: value.item() for name, value in losses.items()}, total  # wait


@snippet
def progress_line(device: torch.device) -> Any:
    loss = torch.full((), 0.25, device=device)
    return f"loss {loss:.3f}"  # wait


@snippet
def state_dict_of_the_host(device: torch.device) -> Any:
    saved = nn.Linear(2, 2).state_dict()
    saved = {name: torch.ones_like(value) for name, value in saved.items()}
    with torch.device("cpu"):
        module = nn.Linear(2, 2)
    module.to(device)  # wait
    module.load_state_dict(saved)  # wait
    return module(torch.ones(1, 2, device=device))


@snippet
def attention_over_tokens(device: torch.device) -> Any:
    query = torch.ones(1, 2, 3, 4, device=device)
    mask = torch.ones(3, 3, dtype=torch.bool, device=device).tril()
    return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)


@snippet
def normal_policy_with_validation(device: torch.device) -> Any:
    mean, std = torch.zeros(3, device=device), torch.ones(3, device=device)
    policy = torch.distributions.Normal(mean, std, validate_args=True)  # wait
    return policy.log_prob(torch.ones(3, device=device))  # wait


@snippet
def normal_policy_without_validation(device: torch.device) -> Any:
    torch.manual_seed(0)
    mean, std = torch.zeros(3, device=device), torch.ones(3, device=device)
    policy = torch.distributions.Normal(mean, std, validate_args=False)
    action = policy.rsample()
    return action, policy.log_prob(action).sum(-1), policy.entropy()


@snippet
def normal_policy_sampled_without_gradient(device: torch.device) -> Any:
    torch.manual_seed(0)
    mean, std = torch.zeros(3, device=device), torch.ones(3, device=device)
    policy = torch.distributions.Normal(mean, std, validate_args=False)
    return policy.sample()  # wait


@snippet
def greedy_categorical_policy(device: torch.device) -> Any:
    logits = torch.arange(6.0, device=device).view(2, 3)
    policy = torch.distributions.Categorical(logits=logits, validate_args=False)
    return policy.mode, policy.log_prob(policy.mode)


@snippet
def early_stopping_by_divergence(device: torch.device) -> Any:
    log_ratio = torch.zeros(4, device=device)
    divergence = ((log_ratio.exp() - 1) - log_ratio).mean()
    epochs = 0
    for _ in range(3):
        epochs += 1
        if divergence > 0.02:  # wait
            break
    return epochs


@snippet
def gradients_that_must_be_finite(device: torch.device) -> Any:
    weight = torch.ones(3, device=device, requires_grad=True)
    (weight * 2).sum().backward()
    norm = nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)  # wait
    return norm.detach(), weight.grad


@snippet
def norm_of_a_gradient_in_a_hook(device: torch.device) -> Any:
    weight, norms = torch.ones(3, device=device, requires_grad=True), list[float]()
    weight.register_hook(
        lambda gradient: norms.append(gradient.norm().item())  # wait
    )
    (weight * 2).sum().backward()
    return norms


@snippet
def soft_update_of_a_target(device: torch.device) -> Any:
    target, source = (torch.full((3,), value, device=device) for value in (0.0, 1.0))
    target.lerp_(source, 0.005)
    with torch.no_grad():
        target.mul_(0.9).add_(source, alpha=0.1)
    return target


@snippet
def discounts_per_sample(device: torch.device) -> Any:
    rewards = torch.ones(3, 2, device=device)
    powers = 0.5 ** torch.arange(3, device=device)
    return torch.func.vmap(lambda row: (row * powers).sum(), in_dims=1)(rewards)


@snippet
def tensordicts_are_stacked_and_indexed(device: torch.device) -> Any:
    steps = [
        TensorDict(x=torch.full((2,), float(i), device=device), batch_size=[2]) for i in (0, 1)
    ]
    stacked: TensorDict = torch.stack(steps, 1)
    mask = stacked["x"][:, 0] >= 0
    return stacked[:, -1]["x"], stacked[mask]["x"]  # wait


@snippet
def rewards_of_a_vector_env(device: torch.device) -> Any:
    rewards = torch.arange(3.0, device=device)
    return [{"reward": float(reward)} for reward in rewards]  # wait


@snippet
def best_of_two_returns(device: torch.device) -> Any:
    best, current = torch.zeros((), device=device), torch.ones((), device=device)
    return max(best, current)  # wait


@snippet
def scale_of_numpy_and_of_the_host(device: torch.device) -> Any:
    observation = torch.ones(3, device=device)
    return observation * np.float32(2.0) + torch.tensor(0.5)  # type: ignore[operator]


@snippet
def wrapper_with_running_statistics(device: torch.device) -> Any:
    class Normalize:
        def __init__(self) -> None:
            self.mean, self.var = torch.zeros(2, device=device), torch.ones(2, device=device)
            self.count = 1e-4

        def observation(self, batch: Tensor) -> Tensor:
            var, mean = torch.var_mean(batch, dim=0, unbiased=False)
            delta, total = mean - self.mean, self.count + len(batch)
            self.mean = self.mean + delta * len(batch) / total
            self.var = (self.var * self.count + var * len(batch)) / total
            self.count = total
            return ((batch - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(-10, 10)

    return Normalize().observation(torch.arange(6.0, device=device).view(3, 2))


# A sixth set, written before it was tried.


@snippet
def different_values(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device)
    return torch.unique(x)  # wait


@snippet
def largest_values(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device)
    return torch.topk(x, 2).values


@snippet
def rows_by_a_list_of_the_host(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device)
    return x[torch.tensor([0, 2])]  # wait


@snippet
def inverse_of_a_matrix(device: torch.device) -> Any:
    a = torch.eye(3, device=device) * 2
    return torch.linalg.inv(a)  # wait


@snippet
def inverse_without_its_check(device: torch.device) -> Any:
    a = torch.eye(3, device=device) * 2
    return torch.linalg.inv_ex(a).inverse


@snippet
def count_of_each_category(device: torch.device) -> Any:
    x = torch.tensor([1, 2, 2], device=device)  # wait
    return torch.bincount(x)  # wait


@snippet
def loop_over_rows(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device).view(2, 3)
    total = torch.zeros(3, device=device)
    for row in x:
        total = total + row
    return total


@snippet
def largest_of_unbound_values(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device)
    return max(x.unbind())  # wait


@snippet
def equality_of_two_tensors(device: torch.device) -> Any:
    a = torch.arange(3.0, device=device)
    return torch.equal(a, a + 0)  # wait


@snippet
def closeness_of_two_tensors(device: torch.device) -> Any:
    a = torch.arange(3.0, device=device)
    return torch.allclose(a, a)  # wait


@snippet
def selection_by_a_condition(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return a.masked_select(a > 1)  # wait


@snippet
def places_where_a_condition_holds(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return torch.argwhere(a > 1)  # wait


@snippet
def mean_in_a_formatted_string(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return f"{a.mean():.2f}"  # wait


@snippet
def log_prob_without_validation(device: torch.device) -> Any:
    logits = torch.zeros(3, 4, device=device)
    torch.manual_seed(0)
    return torch.distributions.Categorical(logits=logits, validate_args=False).log_prob(
        torch.zeros(3, device=device)
    )


@snippet
def normal_distribution_with_validation(device: torch.device) -> Any:
    loc = torch.zeros(3, device=device)
    dist = torch.distributions.Normal(loc, 1.0)  # wait
    return dist.mean


@snippet
def tensordict_changed_if_any_is_done(device: torch.device) -> Any:
    td = TensorDict(
        {
            "a": torch.zeros(3, 2, device=device),
            "done": torch.ones(3, 1, dtype=torch.bool, device=device),
        },
        [3],
        device=device,
    )
    if td["done"].any():  # wait
        td["a"] = td["a"] + 1
    return td["a"]


@snippet
def gather_of_the_largest(device: torch.device) -> Any:
    a = torch.arange(12.0, device=device).view(3, 4)
    ids = a.argmax(-1, keepdim=True)
    return a.gather(-1, ids).squeeze(-1)


@snippet
def scatter_of_a_number(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return a.scatter(0, torch.zeros(1, dtype=torch.long, device=device), 5.0)


@snippet
def half_by_its_shape(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    n = a.numel() // 2
    return a[:n].std()


@snippet
def last_element_from_the_first(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    a[-1] = a[0] * 2
    return a


@snippet
def element_at_a_number_read_before(device: torch.device) -> Any:
    a = torch.arange(4.0, device=device)
    return a[int(a.argmax())]  # wait


@snippet
def resize_of_frames_from_the_host(device: torch.device) -> Any:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)  # wait
    return functional.interpolate(x, size=(4, 4), mode="bilinear", antialias=True)


@snippet
def mask_of_lengths(device: torch.device) -> Any:
    lengths = torch.arange(1, 4, device=device)
    return torch.arange(5, device=device) < lengths[:, None]


@snippet
def range_up_to_the_longest(device: torch.device) -> Any:
    lengths = torch.arange(1, 4, device=device)
    return torch.arange(int(lengths.max()), device=device)  # wait


@snippet
def array_of_a_copy(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device)
    return np.asarray(x.cpu())  # wait


@snippet
def unit_vector(device: torch.device) -> Any:
    q = torch.arange(4.0, device=device)
    return q / q.norm().clamp_min(1e-6)


@snippet
def exploration_on_the_host(device: torch.device) -> Any:
    e = torch.full((), 0.1, device=device)
    return torch.rand(2, generator=torch.Generator().manual_seed(0)) < float(e)  # wait


@snippet
def product_with_a_scalar_of_the_host(device: torch.device) -> Any:
    m = torch.ones(4, device=device)
    m *= torch.as_tensor(0.5)
    return m


@snippet
def returns_that_are_stacked(device: torch.device) -> Any:
    r = [torch.ones((), device=device) for _ in range(3)]
    return torch.stack(r).sum()


@snippet
def returns_in_a_new_tensor(device: torch.device) -> Any:
    r = [torch.ones((), device=device) for _ in range(3)]
    return torch.tensor(r)  # wait


@snippet
def mean_of_unbound_values(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return sum(x.unbind()) / len(x)


@snippet
def second_part_of_a_split(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x.split([1, 3])[1] + 1


@snippet
def slice_from_a_tensor(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    k = torch.ones(1, dtype=torch.long, device=device)
    return x[k:]  # wait


@snippet
def assertion_that_values_are_finite(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    assert torch.isfinite(x).all(), "bad"  # wait
    return x
