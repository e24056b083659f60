"""The update rules of TensorFlow's optimizer ops.

Each takes the variable and its slots, the gradient, and hyperparameters named like the op's inputs
and attributes. It returns the new variable and slots. The formulas are those of
tensorflow/core/kernels/training_ops.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

Slots = tuple[Array, ...]


def gradient_descent(slots: Slots, grad: Array, lr: Array) -> Slots:
    (var,) = slots
    return (var - lr * grad,)


def proximal_gradient_descent(slots: Slots, grad: Array, lr: Array, l1: Array, l2: Array) -> Slots:
    (var,) = slots
    return (_proximal(var - lr * grad, lr, l1, l2),)


def _proximal(x: Array, lr: Array, l1: Array, l2: Array) -> Array:
    return lax.sign(x) * jnp.maximum(lax.abs(x) - lr * l1, 0) / (1 + lr * l2)


def momentum(slots: Slots, grad: Array, lr: Array, momentum: Array, use_nesterov: bool) -> Slots:
    var, accum = slots
    accum = momentum * accum + grad
    step = grad + momentum * accum if use_nesterov else accum
    return var - lr * step, accum


def keras_momentum(
    slots: Slots, grad: Array, lr: Array, momentum: Array, use_nesterov: bool
) -> Slots:
    var, accum = slots
    accum = momentum * accum - lr * grad
    return var + (momentum * accum - lr * grad if use_nesterov else accum), accum


def adam(
    slots: Slots,
    grad: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    use_nesterov: bool,
) -> Slots:
    var, m, v = slots
    rate = _adam_rate(lr, beta1_power, beta2_power)
    m, v = _moving(m, grad, beta1), _moving(v, lax.square(grad), beta2)
    mean = (1 - beta1) * grad + beta1 * m if use_nesterov else m
    return var - rate * mean / (lax.sqrt(v) + epsilon), m, v


def _adam_rate(lr: Array, beta1_power: Array, beta2_power: Array) -> Array:
    """The learning rate, corrected for moments that began at zero."""
    return lr * lax.sqrt(1 - beta2_power) / (1 - beta1_power)


def _moving(mean: Array, x: Array, decay: Array) -> Array:
    """An exponential moving average, after `x`."""
    return mean + (1 - decay) * (x - mean)


def adam_with_amsgrad(
    slots: Slots,
    grad: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
) -> Slots:
    var, m, v, v_hat = slots
    rate = _adam_rate(lr, beta1_power, beta2_power)
    m, v = _moving(m, grad, beta1), _moving(v, lax.square(grad), beta2)
    v_hat = jnp.maximum(v_hat, v)
    return var - rate * m / (lax.sqrt(v_hat) + epsilon), m, v, v_hat


def ada_max(
    slots: Slots,
    grad: Array,
    beta1_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
) -> Slots:
    var, m, v = slots
    m = _moving(m, grad, beta1)
    v = jnp.maximum(beta2 * v, lax.abs(grad))
    return var - lr / (1 - beta1_power) * m / (v + epsilon), m, v


def adagrad(slots: Slots, grad: Array, lr: Array, update_slots: bool) -> Slots:
    var, accum = slots
    accum = accum + lax.square(grad) if update_slots else accum
    return var - lr * grad * lax.rsqrt(accum), accum


def adagrad_v2(slots: Slots, grad: Array, lr: Array, epsilon: Array, update_slots: bool) -> Slots:
    var, accum = slots
    accum = accum + lax.square(grad) if update_slots else accum
    return var - lr * grad / (lax.sqrt(accum) + epsilon), accum


def proximal_adagrad(slots: Slots, grad: Array, lr: Array, l1: Array, l2: Array) -> Slots:
    var, accum = slots
    accum = accum + lax.square(grad)
    rate = lr * lax.rsqrt(accum)
    return _proximal(var - rate * grad, rate, l1, l2), accum


def adagrad_da(
    slots: Slots, grad: Array, lr: Array, l1: Array, l2: Array, global_step: Array
) -> Slots:
    var, total, squares = slots
    step = global_step.astype(var.dtype)
    total, squares = total + grad, squares + lax.square(grad)
    shrunk = lax.sign(total) * jnp.maximum(lax.abs(total) - step * l1, 0)
    return -lr * shrunk / (step * l2 * lr + lax.sqrt(squares)), total, squares


def adadelta(slots: Slots, grad: Array, lr: Array, rho: Array, epsilon: Array) -> Slots:
    var, accum, accum_update = slots
    accum = rho * accum + (1 - rho) * lax.square(grad)
    update = lax.sqrt(accum_update + epsilon) * lax.rsqrt(accum + epsilon) * grad
    return var - lr * update, accum, rho * accum_update + (1 - rho) * lax.square(update)


def rms_prop(
    slots: Slots, grad: Array, lr: Array, rho: Array, momentum: Array, epsilon: Array
) -> Slots:
    var, ms, mom = slots
    ms = _moving(ms, lax.square(grad), rho)
    mom = momentum * mom + lr * grad * lax.rsqrt(ms + epsilon)
    return var - mom, ms, mom


def centered_rms_prop(
    slots: Slots, grad: Array, lr: Array, rho: Array, momentum: Array, epsilon: Array
) -> Slots:
    var, mg, ms, mom = slots
    ms, mg = _moving(ms, lax.square(grad), rho), _moving(mg, grad, rho)
    mom = momentum * mom + lr * grad * lax.rsqrt(ms - lax.square(mg) + epsilon)
    return var - mom, mg, ms, mom


def add_sign(
    slots: Slots, grad: Array, lr: Array, alpha: Array, sign_decay: Array, beta: Array
) -> Slots:
    var, m = slots
    m = beta * m + (1 - beta) * grad
    agreement = lax.sign(grad) * lax.sign(m)
    return var - lr * (alpha + sign_decay * agreement) * grad, m


def power_sign(
    slots: Slots, grad: Array, lr: Array, logbase: Array, sign_decay: Array, beta: Array
) -> Slots:
    var, m = slots
    m = beta * m + (1 - beta) * grad
    agreement = lax.sign(grad) * lax.sign(m)
    return var - lr * lax.exp(logbase * sign_decay * agreement) * grad, m


def ftrl(
    slots: Slots,
    grad: Array,
    lr: Array,
    l1: Array,
    l2: Array,
    lr_power: Array,
    multiply_linear_by_lr: bool,
    l2_shrinkage: Array | int = 0,
) -> Slots:
    var, accum, linear = slots
    new_accum = accum + lax.square(grad)
    # In units in which the linear term is divided by the learning rate, or not.
    unit, over = (lr, 1) if multiply_linear_by_lr else (1, lr)
    power, new_power = accum**-lr_power, new_accum**-lr_power
    shrunk = grad + 2 * l2_shrinkage * var
    linear = linear + unit * shrunk - (new_power - power) / over * var
    quadratic = new_power / over + 2 * l2 * unit
    var = jnp.where(
        lax.abs(linear) > l1 * unit, (l1 * unit * lax.sign(linear) - linear) / quadratic, 0
    )
    return var, new_accum, linear
