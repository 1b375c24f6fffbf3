"""JAX, with the allocator that XLA_PYTHON_CLIENT_ALLOCATOR names. Prints ok."""
import jax
import jax.numpy as jnp
import numpy

assert jax.devices()[0].platform in ("gpu", "cuda"), jax.devices()
f = jax.jit(lambda a, b: jnp.tanh(a @ b).sum(axis=0))
a = numpy.random.default_rng(0).standard_normal((700, 700)).astype("float32")
for i in range(20):
    x = jnp.asarray(a[: 100 + 30 * i])
    y = f(x, jnp.asarray(a))
want = numpy.tanh(a[: 100 + 30 * 19] @ a).sum(axis=0)
assert numpy.allclose(numpy.asarray(y), want, atol=2.0), abs(numpy.asarray(y) - want).max()
print("ok")
