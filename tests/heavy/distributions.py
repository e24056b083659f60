"""TensorFlow Probability's distributions with parameters and values, as test data.

`scalar_distributions` has those over numbers whose class takes the parameters unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.heavy.distribution_case import LOC, POSITIVE, REAL, SCALE, UNIT, Case, made, vector
from tests.heavy.scalar_distributions import SCALARS


def _operator(tfd: Any, matrix: Any) -> Any:
    import tensorflow as tf

    return tf.linalg.LinearOperatorLowerTriangular(matrix, is_non_singular=True)


def _tensor(value: Any) -> Any:
    import tensorflow as tf

    return tf.constant(value)


def _kernel(amplitude: Any, length: Any) -> Any:
    import tensorflow_probability as tfp

    return tfp.math.psd_kernels.ExponentiatedQuadratic(amplitude, length)


def _bijectors() -> Any:
    import tensorflow_probability as tfp

    return tfp.bijectors


TRIL = [[1.2, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.2, 1.5]]
POINTS = [[0.1, -0.4, 1.3], [2.0, 0.6, -1.0], [-0.7, 0.0, 0.2]]
SIMPLEX = [[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [1 / 3, 1 / 3, 1 / 3]]
ONE_HOT = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
CORRELATION = [[[1.0, 0.3, -0.2], [0.3, 1.0, 0.4], [-0.2, 0.4, 1.0]]]
SPHERE = [[0.6, 0.8, 0.0], [0.0, -0.6, 0.8], [1.0, 0.0, 0.0]]
GRID = [[0.0], [0.5], [1.5]]


def _mixture(tfd: Any, logits: Any, loc: Any, scale: Any) -> Any:
    return tfd.Mixture(
        tfd.Categorical(logits=logits), [tfd.Normal(loc[0], scale), tfd.Laplace(loc[1], scale)]
    )


def _same_family(tfd: Any, logits: Any, loc: Any, scale: Any) -> Any:
    return tfd.MixtureSameFamily(tfd.Categorical(logits=logits), tfd.Normal(loc, scale))


def _hidden(tfd: Any, start: Any, move: Any, loc: Any) -> Any:
    return tfd.HiddenMarkovModel(
        tfd.Categorical(logits=start),
        tfd.Categorical(logits=move),
        tfd.Normal(loc, 1.0),
        num_steps=4,
    )


def _state_space(tfd: Any, scale: Any, noise: Any) -> Any:
    import tensorflow as tf

    return tfd.LinearGaussianStateSpaceModel(
        num_timesteps=4,
        transition_matrix=tf.linalg.LinearOperatorIdentity(2),
        transition_noise=tfd.MultivariateNormalDiag(scale_diag=scale),
        observation_matrix=tf.linalg.LinearOperatorIdentity(2),
        observation_noise=tfd.MultivariateNormalDiag(scale_diag=noise),
        initial_state_prior=tfd.MultivariateNormalDiag(scale_diag=scale),
    )


def _chain(tfd: Any, scale: Any) -> Any:
    return tfd.MarkovChain(
        initial_state_prior=tfd.Normal(0.0, scale),
        transition_fn=lambda _, x: tfd.Normal(0.5 * x, scale),
        num_steps=4,
    )


def _autoregressive(tfd: Any, weights: Any) -> Any:
    import tensorflow as tf

    def step(x: Any) -> Any:
        return tfd.Independent(tfd.Normal(tf.linalg.matvec(weights, x), 1.0), 1)

    return tfd.Autoregressive(step, sample0=tf.zeros([3]), num_steps=3)


_SERIES = [[0.3, -0.5, 1.0, 0.2], [1.0, 2.0, -1.0, 0.0]]

CASES: dict[str, Case] = SCALARS | dict(
    (
        made(
            "Bates",
            lambda tfd, low, high: tfd.Bates(np.float32([1.0, 3.0, 7.0]), low, high),
            [[0.1], [0.4], [0.5], [0.8]],
            [[-1.0], [2.0]],
            low=-0.1,
            high=1.2,
        ),
        vector("Categorical", np.int32([[0], [1], [2]]), logits=[[0.1, 1.0, -2.0], [0.5, 0.5, 3]]),
        made(
            "CholeskyLKJ",
            lambda tfd, concentration: tfd.CholeskyLKJ(3, concentration),
            np.linalg.cholesky(CORRELATION),
            concentration=[1.0, 2.5],
        ),
        made(
            "DeterminantalPointProcess",
            lambda tfd, spectrum, vectors: tfd.DeterminantalPointProcess(spectrum, vectors),
            np.int32([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]]),
            spectrum=[0.5, 1.3, 2.0],
            vectors=np.linalg.qr(np.array(TRIL))[0],
        ),
        vector("Dirichlet", SIMPLEX, concentration=[0.5, 1.0, 3.0]),
        made(
            "DirichletMultinomial",
            lambda tfd, concentration: tfd.DirichletMultinomial(5.0, concentration),
            [[1.0, 2.0, 2.0], [5.0, 0.0, 0.0]],
            concentration=[0.5, 1.0, 3.0],
        ),
        vector("Empirical", np.float32([0.1, 0.4, 7.0]), samples=[0.1, 0.4, 0.4, 1.0]),
        made(
            "ExpRelaxedOneHotCategorical",
            lambda tfd, t, logits: tfd.ExpRelaxedOneHotCategorical(t, logits),
            np.log(SIMPLEX),
            t=0.7,
            logits=[0.1, 1.0, -2.0],
        ),
        made(
            "FiniteDiscrete",
            lambda tfd, logits: tfd.FiniteDiscrete([1.0, 2.0, 4.0], logits=logits),
            [1.0, 2.0, 4.0],
            [3.0],
            logits=[0.1, 1.0, -2.0],
        ),
        made(
            "FlatDirichlet",
            lambda tfd: tfd.FlatDirichlet(_tensor([3])),
            SIMPLEX,
        ),
        made(
            "GaussianProcess",
            lambda tfd, amplitude, length, points: tfd.GaussianProcess(
                _kernel(amplitude, length), points, observation_noise_variance=0.1
            ),
            POINTS,
            amplitude=1.2,
            length=0.8,
            points=GRID,
        ),
        made(
            "GaussianProcessRegressionModel",
            lambda tfd, amplitude, length, seen: tfd.GaussianProcessRegressionModel(
                _kernel(amplitude, length),
                index_points=np.float32([[0.2], [0.9]]),
                observation_index_points=np.float32(GRID),
                observations=seen,
                observation_noise_variance=0.1,
            ),
            [[0.1, -0.4], [2.0, 0.6]],
            amplitude=1.2,
            length=0.8,
            seen=[0.3, -0.1, 0.7],
        ),
        made(
            "HiddenMarkovModel",
            _hidden,
            _SERIES,
            start=[0.1, 1.0],
            move=[[0.3, -0.2], [1.0, 0.5]],
            loc=[-1.0, 1.0],
        ),
        made(
            "Independent",
            lambda tfd, loc, scale: tfd.Independent(tfd.Normal(loc, scale), 1),
            POINTS,
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "Inflated",
            lambda tfd, logits, rate: tfd.Inflated(tfd.Poisson(rate), inflated_loc_logits=logits),
            [[0.0], [1.0], [3.0]],
            logits=[-1.0, 0.5],
            rate=[1.0, 2.0],
        ),
        made(
            "LKJ",
            lambda tfd, concentration: tfd.LKJ(3, concentration),
            CORRELATION,
            concentration=[1.0, 2.5],
        ),
        made(
            "LinearGaussianStateSpaceModel",
            _state_space,
            [np.array(_SERIES).reshape(4, 2)],
            scale=[0.5, 1.0],
            noise=[1.0, 0.4],
        ),
        made("MarkovChain", _chain, _SERIES, scale=0.7),
        made(
            "Masked",
            lambda tfd, loc, scale: tfd.Masked(
                tfd.Normal(loc, scale), validity_mask=np.array([True, False, True])
            ),
            POINTS,
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "MatrixNormalLinearOperator",
            lambda tfd, loc, rows, columns: tfd.MatrixNormalLinearOperator(
                loc, _operator(tfd, rows), _operator(tfd, columns)
            ),
            [POINTS],
            loc=np.zeros([3, 3]),
            rows=TRIL,
            columns=TRIL,
        ),
        made(
            "MatrixTLinearOperator",
            lambda tfd, df, loc, rows, columns: tfd.MatrixTLinearOperator(
                df, loc, _operator(tfd, rows), _operator(tfd, columns)
            ),
            [POINTS],
            df=5.0,
            loc=np.zeros([3, 3]),
            rows=TRIL,
            columns=TRIL,
        ),
        made("Mixture", _mixture, POINTS, logits=[[0.3, -0.2]] * 3, loc=[LOC, SCALE], scale=SCALE),
        made(
            "MixtureSameFamily",
            _same_family,
            REAL[0],
            REAL[1],
            logits=[0.3, -0.2, 1.0],
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "Multinomial",
            lambda tfd, logits: tfd.Multinomial(5.0, logits=logits),
            [[1.0, 2.0, 2.0], [5.0, 0.0, 0.0]],
            logits=[0.3, -0.2, 1.0],
        ),
        vector("MultivariateNormalDiag", POINTS, loc=LOC, scale_diag=SCALE),
        vector(
            "MultivariateNormalDiagPlusLowRank",
            POINTS,
            loc=LOC,
            scale_diag=SCALE,
            scale_perturb_factor=[[0.2], [-0.1], [0.4]],
        ),
        made(
            "MultivariateNormalDiagPlusLowRankCovariance",
            lambda tfd, loc, diag, factor: tfd.MultivariateNormalDiagPlusLowRankCovariance(
                loc, diag, factor
            ),
            POINTS,
            loc=LOC,
            diag=SCALE,
            factor=[[0.2], [-0.1], [0.4]],
        ),
        vector(
            "MultivariateNormalFullCovariance",
            POINTS,
            loc=LOC,
            covariance_matrix=np.array(TRIL) @ np.array(TRIL).T,
        ),
        made(
            "MultivariateNormalLinearOperator",
            lambda tfd, loc, scale: tfd.MultivariateNormalLinearOperator(
                loc, _operator(tfd, scale)
            ),
            POINTS,
            loc=LOC,
            scale=TRIL,
        ),
        vector("MultivariateNormalTriL", POINTS, loc=LOC, scale_tril=TRIL),
        made(
            "MultivariateStudentTLinearOperator",
            lambda tfd, df, loc, scale: tfd.MultivariateStudentTLinearOperator(
                df, loc, _operator(tfd, scale)
            ),
            POINTS,
            df=4.5,
            loc=LOC,
            scale=TRIL,
        ),
        vector("OneHotCategorical", ONE_HOT, logits=[0.3, -0.2, 1.0]),
        made(
            "OrderedLogistic",
            lambda tfd, cuts, loc: tfd.OrderedLogistic(cuts, loc),
            np.int32([0, 1, 2, 3]),
            cuts=[-1.0, 0.2, 1.0],
            loc=0.3,
        ),
        vector("PlackettLuce", np.int32([[0, 1, 2], [2, 0, 1]]), scores=[0.5, 1.0, 3.0]),
        made(
            "PoissonLogNormalQuadratureCompound",
            lambda tfd, loc, scale: tfd.PoissonLogNormalQuadratureCompound(loc, scale),
            [[0.0], [1.0], [3.0]],
            loc=[0.2, 1.0],
            scale=[1.0, 0.5],
        ),
        vector("PowerSpherical", SPHERE, mean_direction=[0.0, 0.6, 0.8], concentration=2.5),
        made(
            "QuantizedDistribution",
            lambda tfd, loc, scale: tfd.QuantizedDistribution(
                tfd.Normal(loc, scale), low=-3.0, high=4.0
            ),
            [[-3.0], [0.0], [2.0], [4.0]],
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "RelaxedBernoulli",
            lambda tfd, t, logits: tfd.RelaxedBernoulli(t, logits=logits),
            np.array(UNIT[0])[:, None],
            t=[0.5, 1.0, 2.0],
            logits=[-1.0, 0.0, 2.5],
        ),
        made(
            "RelaxedOneHotCategorical",
            lambda tfd, t, logits: tfd.RelaxedOneHotCategorical(t, logits),
            SIMPLEX,
            t=0.7,
            logits=[0.1, 1.0, -2.0],
        ),
        made(
            "Sample",
            lambda tfd, loc, scale: tfd.Sample(tfd.Normal(loc, scale), [3]),
            [POINTS],
            loc=[0.1, 0.2, 0.4],
            scale=SCALE,
        ),
        made("SphericalUniform", lambda tfd: tfd.SphericalUniform(3), SPHERE),
        made(
            "StoppingRatioLogistic",
            lambda tfd, cuts, loc: tfd.StoppingRatioLogistic(cuts, loc),
            np.float32([0, 1, 2, 3]),
            cuts=[-1.0, 0.2, 1.0],
            loc=0.3,
        ),
        made(
            "StudentTProcess",
            lambda tfd, df, amplitude, length: tfd.StudentTProcess(
                df, _kernel(amplitude, length), np.float32(GRID), observation_noise_variance=0.1
            ),
            POINTS,
            df=4.5,
            amplitude=1.2,
            length=0.8,
        ),
        made(
            "StudentTProcessRegressionModel",
            lambda tfd, df, amplitude, length, seen: tfd.StudentTProcessRegressionModel(
                df,
                _kernel(amplitude, length),
                index_points=np.float32([[0.2], [0.9]]),
                observation_index_points=np.float32(GRID),
                observations=seen,
                observation_noise_variance=0.1,
            ),
            [[0.1, -0.4], [2.0, 0.6]],
            df=4.5,
            amplitude=1.2,
            length=0.8,
            seen=[0.3, -0.1, 0.7],
        ),
        made(
            "TransformedDistribution",
            lambda tfd, loc, scale: tfd.TransformedDistribution(
                tfd.Normal(loc, scale), _bijectors().Softplus()
            ),
            np.array(POSITIVE[0])[:, None],
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "VariationalGaussianProcess",
            lambda tfd, amplitude, length, loc, scale: tfd.VariationalGaussianProcess(
                _kernel(amplitude, length),
                index_points=np.float32([[0.2], [0.9]]),
                inducing_index_points=np.float32(GRID),
                variational_inducing_observations_loc=loc,
                variational_inducing_observations_scale=scale,
                observation_noise_variance=0.1,
            ),
            [[0.1, -0.4], [2.0, 0.6]],
            amplitude=1.2,
            length=0.8,
            loc=LOC,
            scale=TRIL,
        ),
        vector("VectorDeterministic", [LOC, SCALE], loc=LOC),
        vector("VonMisesFisher", SPHERE, mean_direction=[0.0, 0.6, 0.8], concentration=2.5),
        made(
            "WishartLinearOperator",
            lambda tfd, df, scale: tfd.WishartLinearOperator(df, _operator(tfd, scale)),
            CORRELATION,
            df=4.5,
            scale=TRIL,
        ),
        vector("WishartTriL", CORRELATION, df=4.5, scale_tril=TRIL),
        made("Autoregressive", _autoregressive, POINTS, weights=np.tril(TRIL, -1)),
        made(
            "BatchBroadcast",
            lambda tfd, loc, scale: tfd.BatchBroadcast(tfd.Normal(loc, scale), [2, 3]),
            [POINTS[:2]],
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "BatchConcat",
            lambda tfd, loc, scale: tfd.BatchConcat(
                [tfd.Normal(loc, scale), tfd.Normal(loc + 1, scale)], axis=0
            ),
            np.ones([2, 6]),
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "BatchReshape",
            lambda tfd, loc, scale: tfd.BatchReshape(tfd.Normal(loc, scale), [3, 1]),
            [[[0.1], [0.2], [-1.0]]],
            loc=LOC,
            scale=SCALE,
        ),
        made(
            "Blockwise",
            lambda tfd, loc, scale: tfd.Blockwise(
                [tfd.Normal(loc[0], scale[0]), tfd.MultivariateNormalDiag(loc[1:], scale[1:])]
            ),
            POINTS,
            loc=LOC,
            scale=SCALE,
        ),
    )
)
