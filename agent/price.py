"""The price of a GPU-hour: what the operator says, else what the platform's file says, else none."""

from dataclasses import replace

from predictor.cards import Platform


def priced(hardware: Platform, usd_per_gpu_h: float | None) -> Platform:
    """The platform at the operator's price; as it is if they gave none."""
    return hardware if usd_per_gpu_h is None else replace(hardware, price_usd_per_gpu_h=usd_per_gpu_h)
