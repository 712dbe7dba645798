"""From a feature map to a vector, and training through it. Needs no picture and no weights.

python examples/01_describe.py
"""

from __future__ import annotations

import torch

import crow

# What a network's last convolution gives: (pictures, channels, height, width), mostly zeros.
torch.manual_seed(0)
maps = torch.rand(2, 512, 30, 40).sub(0.7).relu()

vectors = crow.describe(maps, crow.RECIPES["crow"])
print(f"a map {tuple(maps.shape)} becomes {tuple(vectors.shape)}, rows of length {vectors.norm(dim=1)}")

# Every published descriptor is a row of one table, and every number in it can be changed.
for recipe in (crow.RECIPES["gem"], crow.RECIPES["rmac"], crow.RECIPES["crow"].set("a=1", "pool.kind=sum")):
    one, other = crow.describe(maps, recipe)
    print(f"{recipe.name:5} {recipe.pool.kind:10} cosine of the two pictures: {one @ other:.3f}")

# Gradients flow through it. Here the first half of 64 channels tells four scenes apart and the other half is loud and
# tells nothing; a layer learns to listen to the first, so that two pictures of a scene come close to each other.
scenes = torch.rand(4, 64, 1, 1)
layer = torch.nn.Conv2d(64, 16, kernel_size=1)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
losses = []
for step in range(1, 61):
    noise = 3 * torch.rand(8, 64, 1, 1)
    noise[:, :32] = 0
    seen = (torch.cat([scenes, scenes]) + noise) * torch.rand(8, 64, 12, 16)  # each scene twice
    v = crow.describe(layer(seen).relu(), crow.RECIPES["crow"])
    loss = torch.nn.functional.cross_entropy(20 * v[:4] @ v[4:].T, torch.arange(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 0:
        print(f"steps {step - 19:2} to {step}: mean loss {sum(losses[-20:]) / 20:.3f}")
