"""What the Accuracy view says: the measured runs of `validation`, as small tables and in words."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from . import validation
from .scenario import Scenario
from .units import BYTE_UNITS, format_bytes
from .validation import LIVE, METHODS, UNDER, errors, percent

ALL = "All methods"
CHOICES = {ALL: ALL} | METHODS
"""Of which runs the view is, in words."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the head of the view."""

    label: str
    value: str
    help: str


def runs(method: str = ALL) -> pd.DataFrame:
    """The measured runs with each method, or all, as `validation.validate` gives them; `name` says which run it is."""
    frame = validation.validate()
    frame = frame if method == ALL else frame[frame["method"] == method]
    return frame.assign(name=[f"{model.rpartition('/')[2]} ({id})" for model, id in zip(frame["model"], frame["id"], strict=True)])


def headline(frame: pd.DataFrame) -> list[Figure]:
    """How close some runs were, in five numbers."""
    figures = [Figure("Measured runs", f"{len(frame):,}", f"Published by {frame['source'].nunique()} sources; each is named below.")]
    live = frame["meter"].isin(LIVE)
    for part, label, meaning in (
        (
            frame[live],
            "Median error, live tensors",
            "Against torch.cuda.max_memory_allocated(): exact but for what a run's page does not say.",
        ),
        (frame[~live], "Median error, whole card", "Against what the allocator reserved or the driver showed: a typical value."),
    ):
        if len(part):
            e = errors(part["error"])
            figures.append(Figure(label, percent(e.median), f"{meaning} {e.n:,} runs, nine in ten within {percent(e.p90)}, worst {percent(e.worst)}."))
    under = errors(frame["error"]).under
    figures.append(
        Figure(
            f"Over {percent(UNDER, 0)} too low",
            percent(under),
            "Share of the runs whose estimate is so far below the measurement: somebody runs out of memory.",
        )
    )
    known = frame.dropna(subset=["driver"])
    if len(known):
        held = known["holds"].astype(bool)
        figures.append(
            Figure(
                "Within the device band",
                f"{held.mean():.0%}".replace("%", " %"),
                f"{held.sum()} of the {len(known)} runs whose driver's figure is known.",
            )
        )
    return figures


def by_source(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors by source, method and meter, as the page prints them."""
    table = validation.by(frame, ["source", "method", "meter_label"])
    return pd.DataFrame(
        {
            "Source": table["source"],
            "Method": table["method"].map(METHODS),
            "Measured": table["meter_label"],
            "Runs": table["n"].astype(str),
            "Median error": table["median"].map(percent).map(unbroken),
            "Nine in ten within": table["p90"].map(percent).map(unbroken),
            "Worst": table["worst"].map(percent).map(unbroken),
            f"Over {percent(UNDER, 0)} too low": table["under"].map("{:.0%}".format).str.replace("%", " %"),
        }
    )


def worst(frame: pd.DataFrame, most: int = 12) -> list[str]:
    """The worst misses by name, those with one reason together, each with that reason or "not explained"; in Markdown."""
    found = frame[frame["miss"]].sort_values("error", key=abs, ascending=False)
    alone = found["note"] == validation.NOT_EXPLAINED
    alike = found["note"].where(~alone, found["source"] + found["model"] + found["method"])
    return [_miss(part) for _, part in found.groupby(alike, sort=False)][:most]


def _miss(part: pd.DataFrame) -> str:
    """Some misses with one reason, the worst first."""
    first = part.iloc[0]
    models = ", ".join(dict.fromkeys(model.rpartition("/")[2].replace("_", "\\_") for model in part["model"]))
    sizes = ", ".join(dict.fromkeys(unbroken(signed_percent(error)) for error in part["error"].iloc[:SHOWN_ERRORS]))
    more = ", …" if len(part) > SHOWN_ERRORS else ""
    reason = first["note"] if first["note"] != validation.NOT_EXPLAINED else f"**{first['note']}**"
    about = f"{', '.join(_ids(part['id']))}; the worst: {first['settings']}"
    return f"**{models}: {sizes}{more}** · {reason}. :gray[{about}.] [{first['source']}]({first['address']})"


SHOWN_ERRORS = 6


def _ids(ids: pd.Series) -> list[str]:
    """As many as have room."""
    names = list(ids)
    return names if len(names) <= SHOWN_ERRORS else [*names[:SHOWN_ERRORS], f"and {len(names) - SHOWN_ERRORS} more"]


def unbroken(text: str) -> str:
    """A number and its unit on one line."""
    return text.replace(" ", "\u00a0").replace("-", "\u2011")


def every_run(frame: pd.DataFrame, unit: str = "GiB") -> pd.DataFrame:
    """Every run with both numbers, the largest error first; numbers stay numbers, in `unit`, and errors are percent."""
    table = frame.sort_values("error", key=abs, ascending=False)
    size = BYTE_UNITS[unit]
    return pd.DataFrame(
        {
            "Run": table["name"],
            "Settings": table["settings"],
            "Measured": table["meter_label"],
            f"Measured ({unit})": table["measured"] / size,
            f"Estimated ({unit})": table["estimated"] / size,
            "Error (%)": 100 * table["error"],
            "Device": table["device"],
            "Source": table["source"],
            "Address": table["address"],
        }
    ).reset_index(drop=True)


def sentence(run: Scenario) -> str:
    """How well runs like this one were predicted, short enough to stand below a verdict: "4 similar measured runs, each
    by its own meter: median error 0.1 %"."""
    found = validation.similar(run)
    if not found.ids:
        return "No measured run is like this one: how close the estimate is cannot be said."
    if len(found.ids) == 1:
        return f"1 similar measured run: error {percent(found.median)}."
    return f"{len(found.ids)} similar measured runs, each by its own meter: median error {percent(found.median)}, worst {percent(found.worst)}."


def signed_percent(share: float) -> str:
    """With its sign, where it is not too small to have one: "+1.2 %", "-0.3 %", "< 0.1 %"."""
    size = percent(share)
    return size if size.startswith("<") else f"{'+' if share >= 0 else '-'}{size}"


def hover(row: pd.Series | object, unit: str = "GiB") -> str:
    """A run as a point of the chart says it, line by line."""
    return "<br>".join(
        (
            f"<b>{row.name}</b>",
            *_wrapped(row.settings),
            f"on {row.device}" if isinstance(row.device, str) and row.device else "",
            f"measured {format_bytes(row.measured, unit)} ({row.meter_label})",
            f"estimated {format_bytes(row.estimated, unit)}, {signed_percent(row.error)}",
            row.source,
        )
    ).replace("<br><br>", "<br>")


def _wrapped(settings: str) -> list[str]:
    """A long list of settings on several lines."""
    parts = settings.split(", ")
    return [", ".join(parts[i : i + 3]) for i in range(0, len(parts), 3)]
