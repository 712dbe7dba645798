"""All campaigns, in the order they are run: the open-ended ones last, which take what the others leave of the time."""

from __future__ import annotations

from torture import damage, determinism, kill, limits, model, pictures, power, soak, supply
from torture.campaign import Campaign

OFFSETS = 500 * 3 * 17  # in each way of damage, in each file of the two indexes
CAMPAIGNS: dict[str, Campaign] = {
    campaign.name: campaign
    for campaign in (
        Campaign("supply", "checks of what is used", 6, supply.supply, 0.3, lanes=1),
        Campaign("kill", "kills inside work", 1000, kill.anywhere, 1.7),
        Campaign("kill-traced", "kills at a file operation", 2000, kill.traced, 1.0),
        Campaign("damage", "damaged copies of an index", OFFSETS, damage.damage, 1.5),
        Campaign("power", "power cuts", 2000, power.power, 0.5),
        Campaign("limits", "full disks and other limits", 250, limits.limits, 0.5),
        Campaign("determinism", "indexes of the same photographs", 14, determinism.determinism, 0.7, lanes=1),
        Campaign("soak", "answers to fifty clients", 2000, soak.soak, 1.5, lanes=1),
        Campaign("bombs", "bombs, and sound files beside them", 67, pictures.bombs, 1.0, lanes=1),
        Campaign("pictures", "broken pictures", 20_000, pictures.pictures, 1.0),
        Campaign("guided", "broken pictures, guided by coverage", 100_000, pictures.guided, 0.5),
        Campaign("model", "steps beside a plain dict", 1_000_000, model.model, 2.0),
    )
}
