"""TensorFlow Probability besides its distributions, as test data.

Each row is a function of the library and of arrays, and the arrays. Functions that draw random
numbers get a seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SEED = np.int32([3, 17])
_RNG = np.random.default_rng(1)
REAL = _RNG.normal(size=(4, 3)).astype(np.float32)
POSITIVE = np.exp(REAL)
UNIT = 1 / (1 + np.exp(-REAL))
TRIL = np.float32([[1.2, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.2, 1.5]])
SERIES = _RNG.normal(size=(2, 6)).astype(np.float32)
POINTS = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
START = np.float32([[0.1, 0.2], [3.0, -4.0]])


@dataclasses.dataclass(frozen=True)
class Row:
    """A function of the library and of arrays; `grad` says whether gradients are compared."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    grad: bool = True

    def arrays(self) -> list[np.ndarray]:
        arrays = [np.asarray(a) for a in self.args]
        return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


def _row(fn: Callable[..., Any], *args: Any, grad: bool = True) -> Row:
    return Row(fn, args, grad)


def _drawn(model: Callable[..., Any], *params: Any) -> Row:
    """Four samples from a seed, and their density."""

    def fn(tfp: Any, seed: Any, *params: Any) -> Any:
        import tensorflow as tf

        made = model(tfp.distributions, *params)
        x = tf.nest.map_structure(tf.stop_gradient, made.sample(4, seed=seed))
        return x, made.log_prob(x)

    return _row(fn, SEED, *params)


# -- bijectors


def _bijector(make: Callable[..., Any], x: Any, *params: Any) -> Row:
    """Forward, inverse, and the log determinants."""

    def fn(tfp: Any, x: Any, *params: Any) -> Any:
        import tensorflow as tf

        bijector = make(tfp.bijectors, *params)
        y = bijector.forward(x)
        # A new tensor, so that the bijector does not return its cached inverse.
        return y, bijector.inverse(tf.identity(y)), bijector.forward_log_det_jacobian(x)

    return _row(fn, x, *params)


def _flow(b: Any, weights: Any) -> Any:
    import tensorflow as tf

    def shift_and_scale(y: Any) -> Any:
        return tf.linalg.matvec(weights, tf.tanh(y)), tf.linalg.matvec(weights, tf.sin(y))

    return b.MaskedAutoregressiveFlow(shift_and_scale)


def _coupling(b: Any, weights: Any) -> Any:
    import tensorflow as tf

    def shift_and_scale(x: Any, _: Any) -> Any:
        return tf.tanh(x @ weights), tf.sin(x @ weights)

    return b.RealNVP(1, shift_and_log_scale_fn=shift_and_scale)


SMALL = np.float32([[-1.3, 0.2, 0.9], [0.4, -0.5, 1.7]])
INSIDE = np.float32([[0.1, 0.35, 0.8], [0.6, 0.5, 0.95]])

BIJECTORS = {
    name: _bijector(lambda b, name=name: getattr(b, name)(), SMALL)
    for name in """Ascending CorrelationCholesky Cumsum DiscreteCosineTransform Exp FillScaleTriL
        GumbelCDF IteratedSigmoidCentered NormalCDF Sigmoid SoftmaxCentered Softplus Softsign Tanh
        UnitVector""".split()
} | {
    "Chain": _bijector(lambda b, s: b.Chain([b.Shift(s), b.Scale(2.0), b.Tanh()]), SMALL, 0.5),
    "CholeskyOuterProduct": _bijector(lambda b: b.CholeskyOuterProduct(), TRIL),
    "FrechetCDF": _bijector(lambda b, s: b.FrechetCDF(-0.1, s), INSIDE, 1.3),
    "GeneralizedPareto": _bijector(
        lambda b, c: b.GeneralizedPareto(0.1, 1.3, c), SMALL, [0.0, 0.4, -0.2]
    ),
    "GompertzCDF": _bijector(lambda b, c, r: b.GompertzCDF(c, r), INSIDE, 1.0, 0.5),
    "Householder": _bijector(lambda b, v: b.Householder(v), SMALL, [0.6, 0.8, 0.0]),
    "KumaraswamyCDF": _bijector(lambda b, c, d: b.KumaraswamyCDF(c, d), INSIDE, 2.0, 0.7),
    "LambertWTail": _bijector(lambda b, t: b.LambertWTail(0.1, 1.2, t), SMALL, 0.3),
    "MaskedAutoregressiveFlow": _bijector(_flow, SMALL, np.tril(TRIL, -1)),
    "MatrixInverseTriL": _bijector(lambda b: b.MatrixInverseTriL(), TRIL),
    "Permute": _bijector(lambda b: b.Permute([2, 0, 1]), SMALL),
    "Power": _bijector(lambda b: b.Power(3.0), INSIDE),
    "RationalQuadraticSpline": _bijector(
        lambda b, w, h, s: b.RationalQuadraticSpline(w, h, s, -1.0),
        INSIDE,
        [0.7, 1.1, 0.2],
        [0.5, 0.9, 0.6],
        [0.8, 1.2],
    ),
    "RealNVP": _bijector(_coupling, SMALL, [[0.3, -0.8]]),
    "ScaleMatvecLU": _bijector(
        lambda b, lu: b.ScaleMatvecLU(lu, [2, 0, 1]), SMALL, TRIL + 0.1 * np.eye(3)[::-1]
    ),
    "ScaleMatvecTriL": _bijector(lambda b, s: b.ScaleMatvecTriL(s), SMALL, TRIL),
    "ShiftedGompertzCDF": _bijector(lambda b, c, r: b.ShiftedGompertzCDF(c, r), INSIDE, 1.2, 0.5),
    "SinhArcsinh": _bijector(lambda b, s, t: b.SinhArcsinh(s, t), SMALL, 0.3, 1.2),
    "SoftClip": _bijector(lambda b, low, high: b.SoftClip(low, high), SMALL, -2.0, 3.0),
    "Softfloor": _bijector(lambda b, t: b.Softfloor(t), SMALL, 0.3),
    "TransformDiagonal": _bijector(lambda b: b.TransformDiagonal(b.Softplus()), TRIL),
    "WeibullCDF": _bijector(lambda b, s, c: b.WeibullCDF(s, c), INSIDE, 1.5, 0.8),
}


# -- joint distributions


def _root(tfd: Any, scale: Any) -> Any:
    root = tfd.JointDistributionCoroutine.Root

    def model() -> Any:
        rate = yield root(tfd.Gamma(2.0, scale, name="rate"))
        loc = yield root(tfd.Normal(0.0, 1.0, name="loc"))
        yield tfd.Sample(tfd.Normal(loc, rate), 3, name="x")

    return tfd.JointDistributionCoroutine(model)


def _batched(tfd: Any, scale: Any) -> Any:
    def model() -> Any:
        loc = yield tfd.Normal(0.0, scale, name="loc")
        yield tfd.Sample(tfd.Normal(loc, 1.0), 3, name="x")

    return tfd.JointDistributionCoroutineAutoBatched(model)


JOINT = {
    "sequential": _drawn(
        lambda d, s: d.JointDistributionSequential(
            [d.Gamma(2.0, s), d.Normal(0.0, 1.0), lambda loc, r: d.Sample(d.Normal(loc, r), 3)]
        ),
        1.5,
    ),
    "coroutine": _drawn(_root, 1.5),
    "coroutine, batched by itself": _drawn(_batched, 1.5),
    "mixture of vectors": _drawn(
        lambda d, logits, loc, scale: d.MixtureSameFamily(
            d.Categorical(logits=logits), d.MultivariateNormalDiag(loc, scale)
        ),
        REAL[0],
        REAL[:3],
        POSITIVE[:3],
    ),
    "reparameterized mixture": _drawn(
        lambda d, logits, loc, scale: d.MixtureSameFamily(
            d.Categorical(logits=logits), d.Normal(loc, scale), reparameterize=True
        ),
        REAL[0],
        REAL[1],
        POSITIVE[1],
    ),
}


# -- chains, processes and their posteriors


def _hidden(tfp: Any, start: Any, move: Any, loc: Any, seen: Any) -> Any:
    import tensorflow as tf

    d = tfp.distributions
    model = d.HiddenMarkovModel(
        d.Categorical(logits=start), d.Categorical(logits=move), d.Normal(loc, 1.0), num_steps=6
    )
    mask = tf.constant([False, True, False, False, True, False])
    return (
        model.posterior_marginals(seen).logits_parameter(),
        model.posterior_mode(seen),
        model.log_prob(seen, mask=mask),
        model.mean(),
        model.variance(),
    )


def _state_space(tfp: Any, noise: Any, seen_noise: Any) -> Any:
    import tensorflow as tf

    d = tfp.distributions
    return d.LinearGaussianStateSpaceModel(
        num_timesteps=5,
        transition_matrix=tf.constant([[1.0, 1.0], [0.0, 0.9]]),
        transition_noise=d.MultivariateNormalDiag(scale_diag=noise),
        observation_matrix=tf.constant([[1.0, 0.0]]),
        observation_noise=d.MultivariateNormalDiag(scale_diag=seen_noise),
        initial_state_prior=d.MultivariateNormalDiag(scale_diag=tf.ones(2)),
    )


def _regression(tfp: Any, amplitude: Any, length: Any, noise: Any, x: Any, y: Any) -> Any:
    kernel = tfp.math.psd_kernels.MaternFiveHalves(amplitude, length)
    model = tfp.distributions.GaussianProcessRegressionModel(
        kernel,
        index_points=x + 0.1,
        observation_index_points=x,
        observations=y,
        observation_noise_variance=noise,
    )
    return model.mean(), model.variance()


MODELS = {
    "hidden Markov": _row(_hidden, [0.1, 1.0], [[0.3, -0.2], [1.0, 0.5]], [-1.0, 1.0], SERIES),
    "filter": _row(
        lambda tfp, a, b, y: tuple(_state_space(tfp, a, b).forward_filter(y)),
        [0.3, 0.1],
        [0.5],
        SERIES[:, :5, None],
    ),
    "smoother": _row(
        lambda tfp, a, b, y: tuple(_state_space(tfp, a, b).posterior_marginals(y)),
        [0.3, 0.1],
        [0.5],
        SERIES[:, :5, None],
    ),
    "samples of a posterior": _row(
        lambda tfp, a, b, y, s: _state_space(tfp, a, b).posterior_sample(y, 3, seed=s),
        [0.3, 0.1],
        [0.5],
        SERIES[:, :5, None],
        SEED,
    ),
    "Gaussian process": _row(_regression, 1.2, 0.6, 0.1, POINTS, np.sin(3 * POINTS[:, 0])),
}


# -- kernels of processes


def _kernel(make: Callable[..., Any]) -> Row:
    def fn(tfp: Any, amplitude: Any, length: Any, x: Any) -> Any:
        kernel = make(tfp.math.psd_kernels, amplitude, length)
        return kernel.matrix(x, x + 0.1), kernel.apply(x, x[::-1])

    return _row(fn, 1.2, 0.6, POINTS)


KERNELS = {
    name: _kernel(lambda k, a, b, name=name: getattr(k, name)(a, b))
    for name in """ExponentiatedQuadratic MaternOneHalf MaternThreeHalves MaternFiveHalves
        ExpSinSquared Linear ExponentialCurve Parabolic""".split()
} | {
    "GammaExponential": _kernel(lambda k, a, b: k.GammaExponential(a, b, power=0.8)),
    "Polynomial": _kernel(lambda k, a, b: k.Polynomial(a, b, exponent=2.0)),
    "ChangePoint": _kernel(
        lambda k, a, b: k.ChangePoint(
            [k.ExponentiatedQuadratic(a, b), k.Linear(a, b)], locs=[0.2], slopes=[3.0]
        )
    ),
    "sum": _kernel(lambda k, a, b: k.ExponentiatedQuadratic(a, b) + k.Linear(a, b)),
}


# -- functions


def _divergences(tfp: Any, x: Any) -> Any:
    names = """arithmetic_geometric chi_square jeffreys jensen_shannon kl_forward kl_reverse pearson
        squared_hellinger total_variation triangular""".split()
    return [getattr(tfp.vi, name)(x) for name in names]


def _loss(tfp: Any, loc: Any, scale: Any, seed: Any, **options: Any) -> Any:
    d = tfp.distributions
    return tfp.vi.monte_carlo_variational_loss(
        d.Normal(1.0, 2.0).log_prob, d.Normal(loc, scale), sample_size=4, seed=seed, **options
    )


def _slopes(tfp: Any, x: Any) -> Any:
    import tensorflow as tf

    return tfp.math.value_and_gradient(lambda v: tf.sin(v) * v, x)


def _solution(tfp: Any, weights: Any, start: Any) -> Any:
    import tensorflow as tf

    solver = tfp.math.ode.DormandPrince(rtol=1e-3)
    return solver.solve(
        lambda _, y, w: tf.linalg.matvec(w, tf.tanh(y)),
        0.0,
        start,
        solution_times=[1.0],
        constants={"w": weights},
    ).states


def _minimum(method: str) -> Callable[..., Any]:
    def fn(tfp: Any, at: Any) -> Any:
        import tensorflow as tf

        def objective(x: Any) -> Any:
            return tf.reduce_sum((x - at) ** 2 * tf.constant([1.0, 3.0]) + 0.1 * x**4, -1)

        found = getattr(tfp.optimizer, method)(
            lambda x: tfp.math.value_and_gradient(objective, x), tf.zeros([2]), tolerance=1e-4
        )
        return found.converged, found.num_iterations, found.position

    return fn


FUNCTIONS = {
    "special": _row(
        lambda tfp, x: [
            getattr(tfp.math, name)(x)
            for name in "dawsn erfcx logerfc logerfcx log_cosh log1psquare smootherstep".split()
        ],
        REAL,
    ),
    "inverses": _row(
        lambda tfp, u, a: (tfp.math.erfcinv(u), tfp.math.igammainv(a, u)), UNIT, POSITIVE
    ),
    "lambertw": _row(lambda tfp, x: tfp.math.lambertw(x), POSITIVE),
    "sums of logarithms": _row(
        lambda tfp, x: (
            tfp.math.log_cumsum_exp(x, 1),
            tfp.math.reduce_logmeanexp(x, 1),
            *tfp.math.reduce_kahan_sum(x, 1),
        ),
        REAL,
    ),
    "triangles": _row(
        lambda tfp, x: tfp.math.fill_triangular_inverse(tfp.math.fill_triangular(x) * 2.0),
        np.arange(12.0).reshape(2, 6),
    ),
    "update of a decomposition": _row(
        lambda tfp, a, b: tfp.math.cholesky_update(a, b, 0.5), TRIL, REAL[0]
    ),
    "associative scan": _row(
        lambda tfp, x: tfp.math.scan_associative(lambda a, b: a * b + a, x), REAL
    ),
    "value and gradient": _row(_slopes, REAL),
    "differential equation": _row(_solution, TRIL, REAL[0]),
    "bfgs": _row(_minimum("bfgs_minimize"), [1.0, -2.0], grad=False),
    "lbfgs": _row(_minimum("lbfgs_minimize"), [1.0, -2.0], grad=False),
    "moments": _row(
        lambda tfp, x: (
            tfp.stats.covariance(x),
            tfp.stats.correlation(x),
            tfp.stats.auto_correlation(x, 0, max_lags=2),
            tfp.stats.percentile(x, [10.0, 50.0], axis=0, interpolation="linear"),
        ),
        REAL,
    ),
    "divergences": _row(_divergences, REAL),
    "variational loss": _row(_loss, 0.3, 1.2, SEED),
    "variational loss of importance": _row(
        lambda *args: _loss(*args, importance_sample_size=3), 0.3, 1.2, SEED
    ),
    "diagnostics": _row(
        lambda tfp, x: (
            tfp.mcmc.effective_sample_size(x),
            tfp.mcmc.potential_scale_reduction(x),
        ),
        np.random.default_rng(2).normal(size=(20, 2, 3)),
    ),
}


# -- Markov chains


def _chain(make: Callable[..., Any]) -> Row:
    """Five steps from two starting points."""

    def fn(tfp: Any, x: Any, seed: Any) -> Any:
        target = tfp.distributions.MultivariateNormalDiag([0.5, -1.0], [1.0, 2.0])
        kernel = make(tfp.mcmc, target.log_prob)
        return tfp.mcmc.sample_chain(5, x, kernel=kernel, trace_fn=None, seed=seed)

    return _row(fn, START, SEED, grad=False)


CHAINS = {
    "RandomWalkMetropolis": _chain(lambda m, f: m.RandomWalkMetropolis(f)),
    "HamiltonianMonteCarlo": _chain(lambda m, f: m.HamiltonianMonteCarlo(f, 0.3, 3)),
    "MetropolisAdjustedLangevin": _chain(
        lambda m, f: m.MetropolisAdjustedLangevinAlgorithm(f, 0.3)
    ),
    "SliceSampler": _chain(lambda m, f: m.SliceSampler(f, 0.5, 5)),
    "NoUTurnSampler": _chain(lambda m, f: m.NoUTurnSampler(f, 0.3, max_tree_depth=3)),
    "adapted HamiltonianMonteCarlo": _chain(
        lambda m, f: m.DualAveragingStepSizeAdaptation(m.HamiltonianMonteCarlo(f, 0.3, 3), 3)
    ),
}

ROWS: dict[str, Row] = {
    f"{group}: {name}": row
    for group, rows in {
        "bijector": BIJECTORS,
        "joint": JOINT,
        "model": MODELS,
        "kernel": KERNELS,
        "function": FUNCTIONS,
        "chain": CHAINS,
    }.items()
    for name, row in rows.items()
}
