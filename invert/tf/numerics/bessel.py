"""Bessel functions of the first, second and third kind, of orders 0 and 1.

Up to a bound the functions are smooth in the square of x, except for known terms in the logarithm
and inverse of x. Beyond it, they are smooth after factoring out a phase or a power (Abramowitz and
Stegun, Handbook of Mathematical Functions, 9.1, 9.2, 9.6 and 9.7). The smooth parts are Chebyshev
series, with coefficients computed by mpmath in 40 digits and rounded to double.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from invert.tf.numerics.derivatives import with_tangent

# Series in t in [-1, 1]. J and Y up to 8: t = x**2 / 32 - 1; P and Q beyond: t = 128 / x**2 - 1. K
# up to 2: t = x**2 / 2 - 1; beyond: t = 4 / x - 1.
_SERIES: dict[str, tuple[float, ...]] = {
    name: tuple(map(float, text.split()))
    for name, text in {
        "J0": """
            0.15772797147489012 -0.00872344235285222129 0.26517861320333681 -0.370094993872649779
            0.158067102332097261 -0.0348937694114088852 0.0048191800694676045
            -0.000460626166206275048 0.0000324603288210050808 -1.76194690776215075e-6
            7.60816359241878187e-8 -2.6792535305576729e-9 7.84869631447946442e-11
            -1.94383468673701657e-12 4.12532059563437393e-14 -7.58850812544754634e-16
            1.2218515873961411e-17
        """,
        "J1": """
            0.0810448463256581151 -0.148975145067652109 0.160999262357209703 -0.0826804917668179066
            0.0222136396549660354 -0.00364694060076927596 0.000405033772835482183
            -0.0000325555486685725852 1.98587740499151674e-6 -9.52198475675043618e-8
            3.68713375909714824e-9 -1.17802662269588484e-10 3.16015458034800332e-12
            -7.22175523965177343e-14 1.42321440035139423e-15 -2.44419729161904639e-17
        """,
        "Y0": """
            -0.0331461132032849417 -0.274474305529745265 0.179034314077182663 0.261567346255046637
            -0.177302012781143582 0.0471966895957633869 -0.00728796247955207918
            0.000753113593257774228 -0.0000563207914105698698 3.20653253765480098e-6
            -1.44072332740186995e-7 5.24879478733051612e-9 -1.58375525418120151e-10
            4.02633081830612075e-12 -8.74734120331076955e-14 1.6434898714919469e-15
            -2.69778811525668356e-17
        """,
        "Y1": """
            0.00253801323574178173 -0.0160871730476687502 -0.0959120453608307425
            0.0844519725965234584 -0.0283281239445943656 0.00528989754416711301
            -0.000641455145132635599 0.0000550598287333874384 -3.5380800186893499e-6
            1.77078045561544034e-7 -7.11055004989927978e-9 2.34433790591151639e-10
            -6.46515184141159424e-12 1.51429151205001995e-13 -3.05118596944732527e-15
            5.34668038572867012e-17
        """,
        "P0": """
            0.999460349347518665 -0.000536522046813211742 3.07518478751947462e-6
            -5.1705945376060977e-8 1.63064646351513831e-9 -7.86409137723707e-11
            5.16826238734919246e-12 -4.30457886992539122e-13 4.32659574315494056e-14
            -5.06903409593523608e-15 6.7480722157338737e-16 -1.00115137234677858e-16
            1.63059192337441847e-17
        """,
        "Q0": """
            -0.0155558546053370091 0.000068385199426116496 -7.41449841106064726e-7
            1.79724572479689918e-8 -7.27191593686631998e-10 4.22012190466873844e-11
            -3.20674742099663474e-12 3.00614512535170631e-13 -3.336328185322427e-14
            4.25522504024546112e-15 -6.09993013164005001e-16 9.66212897030325674e-17
            -1.66860652143781463e-17 3.10824404867381443e-18 -6.19111578735814493e-19
        """,
        "P1": """
            1.0009030408600137 0.000898989833085940856 -3.98728430048890852e-6
            6.17763396064429853e-8 -1.87189074910630661e-9 8.8168986595823389e-11
            -5.7048636403956447e-12 4.69919551523054238e-13 -4.68422378399048922e-14
            5.45267489604471717e-15 -7.22118084227401792e-16 1.06676891143354125e-16
            -1.7312313216116335e-17
        """,
        "Q1": """
            0.0467777870695353252 -0.0000962772354915707932 9.13861525795545412e-7
            -2.09597813840834225e-8 8.22919332765055413e-10 -4.68636368817694523e-11
            3.51521879496860809e-12 -3.26431567432789993e-13 3.59677658291652919e-14
            -4.56125239507729719e-15 6.50828295778338395e-16 -1.02691475318232429e-16
            1.76763554877647916e-17 -3.28345198729816146e-18 6.5240811495892603e-19
        """,
        "K0": """
            -0.267663696616951384 0.344289899924628487 0.0359799365153615016 0.00126461541144692592
            0.0000228621210311945179 2.53479107902614946e-7 1.90451637722020886e-9
            1.03496952576336246e-11 4.25981614279108258e-14 1.3744654358807509e-16
        """,
        "K1": """
            0.762650113669473885 -0.353155960776544876 -0.122611180822657148 -0.00697572385963986435
            -0.000173028895751305206 -2.43340614156596823e-6 -2.21338763073472586e-8
            -1.41148839263352776e-10 -6.66690169419932901e-13 -2.42744985051936593e-15
        """,
        "K0e": """
            1.22015154103297773 -0.0314481013119645005 0.00156988388573005337
            -0.000128495495816278026 0.0000139498137188764994 -1.83175552271911948e-6
            2.76681363944501508e-7 -4.66048989768794767e-8 8.57403401741422609e-9
            -1.69753450938906152e-9 3.57739728140032845e-10 -7.95748924447739704e-11
            1.85594911495492655e-11 -4.51459788337451918e-12 1.14034058820734423e-12
            -2.98009692314817835e-13 8.03289077506837437e-14 -2.22751332674629636e-14
            6.34007647627664597e-15 -1.84859337792090717e-15 5.51205599940433336e-16
            -1.67823112575490064e-16 5.21039177764355411e-17
        """,
        "K1e": """
            1.36031309524222133 0.103923736576817238 -0.00285781685962277939 0.000195215518471351631
            -0.0000193619797416608296 2.40648494783721712e-6 -3.50196060308781254e-7
            5.74108412545004929e-8 -1.0345762465678097e-8 2.01504975519703462e-9
            -4.19035475934192558e-10 9.21831518760531413e-11 -2.12996783842779102e-11
            5.13963967348234354e-12 -1.28917396094982294e-12 3.34841966605224312e-13
            -8.97670518201014607e-14 2.47715442421959868e-14 -7.01983708921476885e-15
            2.03870316623986088e-15 -6.05704727064301782e-16 1.83809357524304543e-16
            -5.68946284919364837e-17
        """,
    }.items()
}


def _chebyshev(name: str, t: Array) -> Array:
    """The sum of a series, by Clenshaw's recurrence."""
    last = before = lax.full_like(t, 0)
    for c in reversed(_SERIES[name][1:]):
        last, before = 2 * t * last - before + lax.full_like(t, c), last
    return t * last - before + lax.full_like(t, _SERIES[name][0])


def _pieces(
    x: Array, bound: float, near: Callable[[Array], Array], far: Callable[[Array], Array]
) -> Array:
    """`near(x)` up to `bound`, `far(x)` beyond, each on its own side only."""
    inside = x <= bound
    other = lax.full_like(x, bound)
    return lax.select(
        inside, near(lax.select(inside, x, other)), far(lax.select(x < bound, other, x))
    )


def _wave(order: int, second: bool, x: Array) -> Array:
    """J or Y of x beyond 8, from the pair's modulus and phase."""
    z = 8 / x
    t = 2 * z * z - 1
    p, q = _chebyshev(f"P{order}", t), z * _chebyshev(f"Q{order}", t)
    # Sine and cosine of x minus odd multiples of pi / 4, without rounding that difference.
    plus, minus = lax.sin(x) + lax.cos(x), lax.sin(x) - lax.cos(x)
    cosine, sine = (plus, minus) if order == 0 else (minus, -plus)
    size = lax.rsqrt(x) * math.sqrt(1 / math.pi)
    return (p * sine + q * cosine if second else p * cosine - q * sine) * size


def _j(order: int, x: Array) -> Array:
    def near(x: Array) -> Array:
        value = _chebyshev(f"J{order}", x * x / 32 - 1)
        return value * x if order else value

    size = lax.abs(x)
    value = _pieces(size, 8.0, near, lambda x: _wave(order, False, x))
    return lax.sign(x) * value if order else value


def _y(order: int, x: Array) -> Array:
    def near(x: Array) -> Array:
        value = _chebyshev(f"Y{order}", x * x / 32 - 1)
        log = 2 / math.pi * lax.log(x) * _j(order, x)
        return value * x + log - 2 / math.pi / x if order else value + log

    known = jnp.where(x > 0, x, 1)
    value = _pieces(known, 8.0, near, lambda x: _wave(order, True, x))
    return _outside(x, value, -math.inf)


def _outside(x: Array, value: Array, pole: float) -> Array:
    """`value`; at 0 and, as in TensorFlow, below it, the pole."""
    return jnp.where(x <= 0, pole, jnp.where(x > 0, value, x))


def _k(order: int, scaled: bool, x: Array) -> Array:
    def near(x: Array) -> Array:
        value = _chebyshev(f"K{order}", x * x / 2 - 1)
        grown = lax.exp(x)
        if order:
            out = value / x + lax.log(x / 2) * lax.bessel_i1e(x) * grown
        else:
            out = value - lax.log(x / 2) * lax.bessel_i0e(x) * grown
        return out * grown if scaled else out

    def far(x: Array) -> Array:
        value = _chebyshev(f"K{order}e", 4 / x - 1) * lax.rsqrt(x)
        return value if scaled else value * lax.exp(-x)

    return _outside(x, _pieces(jnp.where(x > 0, x, 1), 2.0, near, far), math.inf)


Function = Callable[[Array], Array]


def _named(name: str, fn: Function, slope: Function) -> Function:
    """`fn` with a name and its derivative."""

    def function(x: Array) -> Array:
        return fn(x)

    function.__name__ = function.__qualname__ = name
    return with_tangent(lambda y, x, tangents: tangents[0] * slope(*x))(function)


# The derivatives are those of tensorflow/python/ops/math_grad.py, TensorFlow 2.21.
bessel_j0 = _named("bessel_j0", lambda x: _j(0, x), lambda x: -bessel_j1(x))
bessel_j1 = _named(
    "bessel_j1",
    lambda x: _j(1, x),
    lambda x: jnp.where(x == 0, 0.5, bessel_j0(x) - bessel_j1(x) / jnp.where(x == 0, 1, x)),
)
bessel_y0 = _named("bessel_y0", lambda x: _y(0, x), lambda x: -bessel_y1(x))
bessel_y1 = _named("bessel_y1", lambda x: _y(1, x), lambda x: bessel_y0(x) - bessel_y1(x) / x)
bessel_k0 = _named("bessel_k0", lambda x: _k(0, False, x), lambda x: -bessel_k1(x))
bessel_k1 = _named(
    "bessel_k1", lambda x: _k(1, False, x), lambda x: -bessel_k0(x) - bessel_k1(x) / x
)
bessel_k0e = _named("bessel_k0e", lambda x: _k(0, True, x), lambda x: bessel_k0e(x) - bessel_k1e(x))
bessel_k1e = _named(
    "bessel_k1e", lambda x: _k(1, True, x), lambda x: bessel_k1e(x) * (1 - 1 / x) - bessel_k0e(x)
)

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "BesselJ0": bessel_j0,
    "BesselJ1": bessel_j1,
    "BesselK0": bessel_k0,
    "BesselK0e": bessel_k0e,
    "BesselK1": bessel_k1,
    "BesselK1e": bessel_k1e,
    "BesselY0": bessel_y0,
    "BesselY1": bessel_y1,
}
