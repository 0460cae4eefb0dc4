import numpy as np
import pytest
from grokscope.analysis.claim import Claim, Finding, bounds, interval, p_value, verdicts
from scipy import stats

CLAIM = Claim("rate", "It is one.", "1", "Table 1", "number", "rate", 0.9, 1.1)
EXACT = Claim("count", "There are three.", "3", "Section 2", "identity", "count", 3, 3, exact=True)
NEAR = (0.98, 1.0, 1.02, 1.01, 0.99)
FAR = (1.48, 1.5, 1.52, 1.51, 1.49)
WIDE = (0.2, 2.0, 1.0, 0.5, 1.6)


def finding(*values, claim=CLAIM, testable=True):
    return Finding(claim.name, values, "supported", "none", testable)


def verdict(*values, claim=CLAIM, scale="paper", testable=True):
    return verdicts([(claim, finding(*values, claim=claim, testable=testable), scale)])[0]


def test_interval_is_the_closed_form():
    # Five values 1..5: mean 3, s = sqrt(2.5), t_{.975, 4} = 2.776445 (tables).
    half = 2.7764451052 * np.sqrt(2.5 / 5)
    assert interval((1, 2, 3, 4, 5)) == pytest.approx((3 - half, 3 + half), rel=1e-9)


def test_interval_covers_its_share():
    rng = np.random.default_rng(0)
    covered = [low <= 0 <= high for low, high in (interval(rng.normal(size=5)) for _ in range(2000))]
    assert abs(np.mean(covered) - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 2000)  # false alarm 6e-5


def test_interval_of_one_value_knows_nothing():
    assert interval((1.0,)) == (-np.inf, np.inf)
    assert interval((1.0, np.nan)) == (-np.inf, np.inf)
    with pytest.raises(ValueError, match=r"level=95"):
        interval((1.0, 2.0), level=95)


def test_p_value_is_that_of_a_t_test_at_the_nearer_edge():
    values = (1.2, 1.3, 1.25, 1.28, 1.22)
    assert p_value(CLAIM, finding(*values)) == pytest.approx(stats.ttest_1samp(values, 1.1).pvalue, rel=1e-9)
    mirrored = tuple(2 - value for value in values)
    assert p_value(CLAIM, finding(*mirrored)) == pytest.approx(p_value(CLAIM, finding(*values)), rel=1e-9)


def test_p_value_agrees_with_the_interval():
    """The interval excludes the range exactly when p < .05."""
    rng = np.random.default_rng(1)
    for shift in np.linspace(-0.5, 0.5, 50):
        values = tuple(1 + shift + 0.1 * rng.normal(size=6))
        low, high = bounds(CLAIM, finding(*values))
        assert (p_value(CLAIM, finding(*values)) < 0.05) == (low > CLAIM.high or high < CLAIM.low)


def test_verdicts_at_paper_scale():
    assert verdict(*NEAR) == "reproduced"
    assert verdict(*FAR) == "refuted"
    assert verdict(*WIDE) == "inconclusive"
    assert verdict(*NEAR[:4]) == "inconclusive"  # four seeds are too few
    assert verdict(*NEAR, np.nan) == "inconclusive"  # a seed without a value isn't left out


def test_quick_runs_never_decide():
    assert verdict(*NEAR, scale="quick") == "consistent"
    assert verdict(*WIDE, scale="quick") == "consistent"
    assert verdict(*FAR, scale="quick") == "inconsistent"


def test_exact_claims_need_one_value_and_no_scale():
    for scale in ("quick", "paper"):
        assert verdict(3.0, claim=EXACT, scale=scale) == "reproduced"
        assert verdict(4.0, claim=EXACT, scale=scale) == "refuted"
        assert verdict(3.0, 4.0, claim=EXACT, scale=scale) == "inconclusive"
        assert verdict(claim=EXACT, scale=scale) == "inconclusive"


def test_what_cannot_be_tested_is_not_judged():
    assert verdict(*NEAR, testable=False) == "not testable here"


def test_refutation_survives_holm_over_all_claims():
    """p near .01 refutes alone, but not as one of eight: Holm multiplies the smallest p by eight."""
    values = tuple(1.1 + np.array([0.03, 0.05, 0.02, 0.08, 0.04]))
    p = p_value(CLAIM, finding(*values))
    assert 0.05 / 8 < p < 0.05
    alone = (CLAIM, finding(*values), "paper")
    others = [(CLAIM, finding(*NEAR), "paper")] * 7
    assert verdicts([alone]) == ("refuted",)
    assert verdicts([alone, *others]) == ("inconclusive", *["reproduced"] * 7)


def test_no_claims():
    assert verdicts([]) == ()


def test_equal_values_are_a_point():
    assert verdict(*[1.0] * 5) == "reproduced"
    assert verdict(*[2.0] * 5) == "refuted"


def test_a_range_must_be_one():
    with pytest.raises(ValueError, match=r"low=2 exceeds high=1"):
        Claim("x", "x", "x", "x", "number", "x", 2, 1)
