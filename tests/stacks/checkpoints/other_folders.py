"""Checkpoint folders as openpi and GR00T save them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Statistics = dict[str, list[Any]]


def statistics(size: int, seed: int = 0, padding: int = 0) -> Statistics:
    """Return true statistics of a feature, with zeros behind them."""
    return statistics_of(np.random.default_rng(seed).normal(1, 3, (500, size)), padding)


def statistics_of(rows: np.ndarray[Any, Any], padding: int = 0) -> Statistics:
    """Return the statistics of rows ``[N, D]``, with zeros behind them."""
    named = {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "q01": np.quantile(rows, 0.01, axis=0),
        "q99": np.quantile(rows, 0.99, axis=0),
        "min": rows.min(0),
        "max": rows.max(0),
    }
    return {name: np.pad(value, (0, padding)).tolist() for name, value in named.items()}


def openpi_statistics(size: int, seed: int = 0, padding: int = 0) -> Statistics:
    """Return those of openpi, which has no extremes."""
    known = statistics(size, seed, padding)
    return {name: known[name] for name in ("mean", "std", "q01", "q99")}


def write_openpi(path: Path, assets: Mapping[str, Mapping[str, Statistics]]) -> Path:
    """Write a checkpoint of openpi: statistics by asset and feature."""
    for asset, features in assets.items():
        folder = path / "assets" / asset
        folder.mkdir(parents=True)
        (folder / "norm_stats.json").write_text(json.dumps({"norm_stats": features}))
    return path


def groot_metadata() -> dict[str, Any]:
    """Return the metadata of one embodiment, as GR00T N1.5 writes it."""
    sizes = {"single_arm": 5, "gripper": 1}
    group = {
        name: {"absolute": True, "rotation_type": None, "shape": [size], "continuous": True}
        for name, size in sizes.items()
    }
    return {
        "new_embodiment": {
            "statistics": {
                part: {name: statistics(size, seed) for name, size in sizes.items()}
                for seed, part in enumerate(("state", "action"))
            },
            "modalities": {
                "video": {"front": {"resolution": [640, 480], "channels": 3, "fps": 30.0}},
                "state": group,
                "action": group,
            },
            "embodiment_tag": "new_embodiment",
        }
    }


def write_metadata(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a checkpoint of GR00T N1.5."""
    (path / "experiment_cfg").mkdir(parents=True)
    (path / "experiment_cfg" / "metadata.json").write_text(json.dumps(metadata))
    return path


class Processor:
    """The processor of GR00T N1.6, which tests damage before it is written."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {
            "use_percentiles": False,
            "clip_outliers": True,
            "apply_sincos_state_encoding": False,
            "use_relative_action": False,
            "modality_configs": {
                "gr1": {
                    "video": {"delta_indices": [0], "modality_keys": ["ego_view"]},
                    "state": {
                        "delta_indices": [0],
                        "modality_keys": ["left_arm", "waist"],
                        "sin_cos_embedding_keys": None,
                        "mean_std_embedding_keys": None,
                        "action_configs": None,
                    },
                    "action": {
                        "delta_indices": list(range(4)),
                        "modality_keys": ["left_arm", "waist"],
                        "sin_cos_embedding_keys": None,
                        "mean_std_embedding_keys": None,
                        "action_configs": [
                            {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"}
                            for _ in range(2)
                        ],
                    },
                }
            },
        }
        self.statistics: dict[str, Any] = {
            "gr1": {
                part: {"left_arm": statistics(7, seed), "waist": statistics(3, seed + 10)}
                for seed, part in enumerate(("state", "action"))
            }
        }

    def set_images(self, *, use_albumentations: bool) -> None:
        """Add what GR00T declares about images and text."""
        self.settings |= {
            "image_target_size": [24, 24],
            "image_crop_size": [21, 21],
            "shortest_image_edge": 24,
            "crop_fraction": 0.9,
            "use_albumentations": use_albumentations,
            "formalize_language": True,
            "color_jitter_params": {"brightness": 0.3},
        }
        self.modalities["language"] = {"delta_indices": [0], "modality_keys": ["task"]}

    def set_relative(self, layout: str = "DEFAULT", size: int = 7) -> None:
        """Make the actions of the arm relative to its state: joints, or poses in a layout."""
        self.settings["use_relative_action"] = True
        kind = "NON_EEF" if layout == "DEFAULT" else "EEF"
        config = {"rep": "RELATIVE", "type": kind, "format": layout, "state_key": None}
        self.modalities["action"]["action_configs"][0] = config
        rows = np.random.default_rng(0).normal(size=(500, 4, size))
        known = self.statistics["gr1"]
        known["state"]["left_arm"] = statistics(size)
        known["action"]["left_arm"] = statistics(size, 1)
        known["relative_action"] = {
            "left_arm": {
                "min": rows.min(0).tolist(),
                "max": rows.max(0).tolist(),
                "mean": rows.mean(0).tolist(),
                "std": rows.std(0).tolist(),
            }
        }

    @property
    def modalities(self) -> dict[str, Any]:
        """Configuration of the modalities of the embodiment."""
        configs: dict[str, Any] = self.settings["modality_configs"]["gr1"]
        return configs

    def write(self, path: Path) -> Path:
        """Write the folder, and return it."""
        path.mkdir(parents=True, exist_ok=True)
        config = {"processor_class": "Gr00tN1d6Processor", "processor_kwargs": self.settings}
        (path / "processor_config.json").write_text(json.dumps(config))
        (path / "statistics.json").write_text(json.dumps(self.statistics))
        return path
