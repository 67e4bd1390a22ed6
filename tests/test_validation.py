"""How close the estimates are is said as it is: for every run, by source, and for runs like one."""

import numpy as np
import pytest

import memcore
from memcore import catalog, validation
from memcore.scenario import FIELDS
from memcore.validation import ENOUGH_RUNS, NOT_EXPLAINED, errors, percent, similar, summary, validate

RUN = memcore.Scenario(model="meta-llama/Llama-3.1-8B")


class TestEveryRun:
    frame = validate()

    def test_there_is_a_row_for_each_measured_run(self):
        assert self.frame["id"].tolist() == list(catalog.measured_runs())

    def test_a_row_has_the_settings_and_the_source(self):
        assert {*FIELDS, "group", "source", "address", "settings", "gpus", "meter", "measured", "estimated", "error"} <= set(self.frame)
        assert self.frame[["source", "address", "settings"]].map(bool).all(axis=None)

    @pytest.mark.parametrize(
        ("meter", "figure"), [("allocated", "allocated"), ("active", "allocated"), ("reserved", "reserved"), ("nvidia-smi", "device")]
    )
    def test_a_run_is_compared_with_what_its_meter_shows(self, meter, figure):
        row = self.frame[self.frame["meter"] == meter].iloc[0]
        measured = catalog.measured_runs()[row["id"]]
        assert row["estimated"] == getattr(memcore.estimate(memcore.Scenario(**measured.scenario)), figure)
        assert row["error"] == row["estimated"] / measured.measured_bytes - 1

    def test_the_band_is_held_against_the_drivers_figure_where_there_is_one(self):
        known = self.frame.dropna(subset=["driver"])
        assert len(known) == 99
        assert (known["holds"] == ((known["low"] <= known["driver"]) & (known["driver"] <= known["high"]))).all()
        assert self.frame[self.frame["driver"].isna()]["holds"].isna().all()

    def test_each_miss_has_its_reason_or_says_that_it_is_not_explained(self):
        missed = self.frame[self.frame["miss"]]
        assert missed["note"].map(bool).all()
        assert (missed["note"] == NOT_EXPLAINED).any()
        assert (self.frame[~self.frame["miss"]]["note"] == "").all()

    def test_no_miss_is_left_out(self):
        far = self.frame["error"].abs() > 0.05
        assert self.frame[far]["miss"].all()
        assert self.frame[self.frame["holds"] == False]["miss"].all()  # noqa: E712  a column

    def test_reasons_are_given_for_runs_that_exist(self):
        assert set(validation.known_misses()) <= set(catalog.measured_runs())

    def test_a_caller_cannot_spoil_the_next_ones_rows(self):
        mine = validate()
        mine["error"] = 0.0
        assert (validate()["error"] != 0).any()


class TestErrors:
    def test_they_are_summed_up_by_size_and_the_dangerous_ones_by_sign(self):
        e = errors([0.01, -0.02, 0.10, -0.10])
        assert (e.n, e.median, e.p90, e.worst, e.under) == (4, pytest.approx(0.06), 0.10, 0.10, 0.25)

    def test_nothing_is_not_an_error_of_zero(self):
        with pytest.raises(ValueError, match="no errors"):
            errors([])

    @pytest.mark.parametrize(("share", "text"), [(0, "0.0 %"), (0.0003, "< 0.1 %"), (-0.012, "1.2 %"), (0.0999, "10 %"), (0.24, "24 %")])
    def test_in_words(self, share, text):
        assert percent(share) == text

    def test_the_summary_counts_every_run_once(self):
        assert summary()["n"].sum() == len(catalog.measured_runs())
        assert (summary()["median"] <= summary()["p90"]).all()

    def test_misses_are_listed_worst_first(self):
        sizes = validation.misses()["error"].abs().to_numpy()
        assert (np.diff(sizes) <= 0).all()


class TestSimilarRuns:
    def test_they_share_method_weights_gpus_loss_and_checkpointing(self):
        like = similar(RUN)
        frame = validate().set_index("id").loc[list(like.ids)]
        assert set(frame["method"]) == {"qlora"}
        assert set(frame["gpus"]) == {1}
        assert set(frame["loss"]) == {"full-logits"}
        assert "none" not in set(frame["gradient_checkpointing"])
        assert not like.different
        assert like.median == errors(frame["error"]).median
        assert f"{len(frame)} similar runs (QLoRA" in like.sentence

    def test_the_last_thing_asked_for_is_given_up_first(self):
        # no published full fine-tuning on one GPU with a Triton loss goes without checkpointing
        like = similar(RUN.replace(method="full", loss="triton", gradient_checkpointing="none"))
        assert like.different == ("no checkpointing",)
        assert "share no checkpointing too" in like.sentence

    def test_the_class_is_never_smaller_than_enough_unless_there_are_no_more(self):
        for changes in ({}, {"loss": "chunked"}, {"method": "full"}, {"data_parallel_size": 8, "sharding": "fsdp"}):
            assert len(similar(RUN.replace(**changes)).ids) >= ENOUGH_RUNS

    @pytest.mark.parametrize(
        ("changes", "because"),
        [
            ({"attention": "eager"}, "attention scores stored"),
            ({"model": "Qwen/Qwen3-30B-A3B"}, "a mixture of experts"),
            ({"sharding": "fsdp-offload", "data_parallel_size": 2}, "offloaded weights"),
        ],
    )
    def test_where_nothing_like_it_was_measured_that_is_said(self, changes, because):
        like = similar(RUN.replace(**changes))
        assert like.ids == () and like.median is None
        assert like.sentence.startswith("No measured run is like this one") and because in like.sentence

    @pytest.mark.parametrize("measured", catalog.measured_runs().values(), ids=lambda m: m.id)
    def test_a_measured_run_is_similar_to_itself(self, measured):
        assert measured.id in similar(memcore.Scenario(**measured.scenario)).ids
