import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from seqdenoise import LinearProbe, ViewEncoder, fit_linear_probe, probe

EPSILON = 0.3


def blobs(num_classes=3, rows=300, d=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, rows)
    centers = rng.normal(size=(num_classes, d))
    return centers[labels] + rng.normal(size=(rows, d)), labels


def fragile(seed, rows=400):
    """One feature that tells the classes apart by more than epsilon, eleven that do by less.

    Together the eleven tell more than the one, so who does not expect an attack relies on them.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    side = 2 * labels[:, np.newaxis] - 1
    strong = side + rng.normal(size=(rows, 1))
    weak = 0.2 * side + 0.4 * rng.normal(size=(rows, 11))
    return np.concatenate([strong, weak], axis=1), labels


def attacked_loss(kernel, bias, vectors, labels, epsilon, l2):
    """The two-class objective after the best attack, which takes epsilon times an L1 norm."""
    weights = kernel[:, 1] - kernel[:, 0]
    margin = (2 * labels - 1) * (vectors @ weights + bias[1] - bias[0])
    losses = np.logaddexp(0, epsilon * np.abs(weights).sum() - margin)
    return losses.mean() + l2 / 2 * np.sum(kernel**2)


def lowest_attacked_loss(vectors, labels, epsilon, l2):
    """Its minimum, with weights = positive - negative, which makes the L1 norm smooth."""
    d = vectors.shape[1]
    side = 2 * labels - 1

    def objective(parameters):
        positive, negative, bias = parameters[:d], parameters[d : 2 * d], parameters[-1]
        weights = positive - negative
        lead = epsilon * (positive + negative).sum() - side * (vectors @ weights + bias)
        slope = 1 / (1 + np.exp(-lead)) / len(labels)
        by_weights = -vectors.T @ (slope * side) + l2 / 2 * weights
        by_norm = epsilon * slope.sum()
        # The two vectors of the classes are +-weights / 2 at the minimum.
        loss = np.logaddexp(0, lead).mean() + l2 / 4 * np.sum(weights**2)
        return loss, np.r_[by_weights + by_norm, -by_weights + by_norm, -(slope * side).sum()]

    found = optimize.minimize(
        objective,
        np.zeros(2 * d + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * d) + [(None, None)],
        options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return found.fun


def encoder_of(d):
    encoder = ViewEncoder(units=16, hidden_units=64, seed=5)
    encoder.build((None, d))
    return encoder


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_without_attacks_it_is_logistic_regression(l2):
    vectors, labels = blobs()
    got = fit_linear_probe(vectors, labels, l2=l2)
    oracle = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-10, max_iter=10_000)
    oracle.fit(vectors, labels)
    np.testing.assert_allclose(got.kernel, oracle.coef_.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        got.predict_proba(vectors), oracle.predict_proba(vectors), rtol=1e-5, atol=1e-6
    )


def test_two_classes_have_a_vector_each_and_so_half_the_penalty_of_one():
    vectors, labels = blobs(num_classes=2)
    got = fit_linear_probe(vectors, labels, l2=1e-2)
    oracle = LogisticRegression(C=2 / (1e-2 * len(labels)), tol=1e-10, max_iter=10_000)
    oracle.fit(vectors, labels)
    np.testing.assert_allclose(
        got.predict_proba(vectors), oracle.predict_proba(vectors), rtol=1e-3, atol=1e-5
    )


def test_labels_are_any_integers():
    vectors, labels = blobs()
    names = np.array([40, -7, 2**40])
    got = fit_linear_probe(vectors, names[labels])
    np.testing.assert_array_equal(got.classes, [-7, 40, 2**40])
    plain = fit_linear_probe(vectors, labels)
    np.testing.assert_array_equal(got.predict(vectors), names[plain.predict(vectors)])
    assert got.accuracy(vectors, names[labels]) == np.mean(plain.predict(vectors) == labels)
    np.testing.assert_allclose(got.predict_proba(vectors).sum(axis=1), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_attack_on_two_classes_goes_against_the_difference_of_their_weights(dtype):
    vectors, labels = fragile(0)
    vectors = vectors.astype(dtype)
    fitted = fit_linear_probe(vectors, labels)
    weights = fitted.kernel[:, 1] - fitted.kernel[:, 0]
    side = 2 * labels[:, np.newaxis] - 1
    got = fitted.attack(vectors, labels, epsilon=EPSILON)
    assert got.dtype == dtype
    assert (np.abs(got - vectors) <= dtype(EPSILON)).all()
    expected = vectors.astype(np.float64) - EPSILON * side * np.sign(weights)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    margin = (side[:, 0] * (vectors @ weights + fitted.bias[1] - fitted.bias[0])).astype(float)
    assert np.abs(margin - EPSILON * np.abs(weights).sum()).min() > 1e-4  # no ties to argue about
    assert fitted.accuracy(vectors, labels, epsilon=EPSILON) == np.mean(
        margin > EPSILON * np.abs(weights).sum()
    )


def test_rows_that_are_clearly_right_are_attacked_too():
    # Their cross-entropy is exp(-2000), its gradient exactly 0.
    fitted = LinearProbe(np.array([0, 1]), np.array([[-1e3, 1e3], [1e3, -1e3]]), np.zeros(2))
    vectors = np.array([[1.0, 0.0]], np.float32)
    got = fitted.attack(vectors, np.array([1]), epsilon=0.25)
    np.testing.assert_allclose(got, [[0.75, 0.25]])


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_training_against_attacks_finds_the_minimum_of_the_attacked_loss(epsilon, dtype):
    vectors, labels = fragile(1)
    # One step of the default size reaches the corner, which is the maximum of a linear loss.
    fitted = fit_linear_probe(vectors.astype(dtype), labels, epsilon=epsilon, num_steps=1, l2=1e-3)
    got = attacked_loss(fitted.kernel, fitted.bias, vectors, labels, epsilon, 1e-3)
    lowest = lowest_attacked_loss(vectors, labels, epsilon, 1e-3)
    assert lowest - 1e-8 <= got <= lowest + 1e-4
    clean = fit_linear_probe(vectors, labels, l2=1e-3)
    assert attacked_loss(clean.kernel, clean.bias, vectors, labels, epsilon, 1e-3) > lowest + 2e-3


@pytest.mark.parametrize("seed", range(4))
def test_trained_against_attacks_it_withstands_them_better(seed):
    train, train_labels = fragile(seed)
    test, test_labels = fragile(100 + seed, rows=4000)
    clean = fit_linear_probe(train, train_labels)
    hardened = fit_linear_probe(
        train, train_labels, epsilon=EPSILON, num_steps=1, num_updates=400, batch_size=128
    )

    def accuracies(fitted):
        return [fitted.accuracy(test, test_labels, epsilon=epsilon) for epsilon in (0.0, EPSILON)]

    (clean_plain, clean_attacked), (hardened_plain, hardened_attacked) = map(
        accuracies, (clean, hardened)
    )
    assert hardened_attacked > clean_attacked + 0.1
    # The price, without an attack.
    assert hardened_plain < clean_plain
    assert hardened_plain > hardened_attacked


@pytest.mark.parametrize("seed", range(3))
def test_trained_against_attacks_through_an_encoder_it_withstands_them_better(seed):
    train, train_labels = fragile(seed, rows=600)
    test, test_labels = fragile(100 + seed, rows=2000)
    train, test = train.astype(np.float32), test.astype(np.float32)
    encoder = encoder_of(train.shape[1])
    before = [weight.numpy() for weight in encoder.weights]
    clean = fit_linear_probe(train, train_labels, encoder=encoder)
    hardened = fit_linear_probe(
        train, train_labels, encoder=encoder, epsilon=0.2, num_steps=4, num_updates=300
    )
    clean_attacked, hardened_attacked = (
        fitted.accuracy(test, test_labels, epsilon=0.2) for fitted in (clean, hardened)
    )
    assert hardened_attacked > clean_attacked + 0.05
    for weight, old in zip(encoder.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)


def test_against_an_overwhelming_attack_the_classes_rates_are_all_there_is():
    vectors, labels = fragile(0)
    fitted = fit_linear_probe(vectors, labels, epsilon=2.0, num_steps=1)
    assert np.abs(fitted.kernel).max() < 1e-3
    rates = np.bincount(labels) / len(labels)
    np.testing.assert_allclose(fitted.predict_proba(vectors[:1]), [rates], atol=2e-3)


def test_an_encoder_runs_before_the_classifier():
    vectors, labels = blobs()
    vectors = vectors.astype(np.float32)
    encoder = encoder_of(4)
    got = fit_linear_probe(vectors, labels, encoder=encoder)
    plain = fit_linear_probe(encoder(tf.constant(vectors)).numpy().astype(np.float64), labels)
    np.testing.assert_allclose(got.kernel, plain.kernel, rtol=1e-6)
    np.testing.assert_array_equal(
        got.predict(vectors), plain.predict(encoder(tf.constant(vectors)).numpy())
    )
    attacked = got.attack(vectors, labels, epsilon=0.1)
    assert (np.abs(attacked - vectors) <= np.float32(0.1)).all()
    right = np.arange(len(labels)), labels
    worse = got.predict_proba(attacked)[right] < got.predict_proba(vectors)[right]
    assert worse.mean() > 0.98


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 2.0])
def test_an_attack_never_raises_the_accuracy(epsilon):
    vectors, labels = blobs(num_classes=4)
    fitted = fit_linear_probe(vectors, labels)
    plain = fitted.accuracy(vectors, labels)
    attacked = fitted.accuracy(vectors, labels, epsilon=epsilon)
    assert attacked <= plain
    assert epsilon < 0.5 or attacked < plain - 0.1


def test_a_wrong_row_stays_wrong_even_if_the_attack_makes_it_right():
    # The right class has 0.40, the leader 0.45. What lowers it most evens out the other two, and
    # takes the lead from the leader.
    kernel = np.array([[0.0, -1.5, 6.0]])
    bias = np.log([0.40, 0.45, 0.15])
    fitted = LinearProbe(np.arange(3), kernel, bias)
    vectors, labels = np.zeros((1, 1)), np.array([0])
    attacked = fitted.attack(vectors, labels, epsilon=0.1)
    assert fitted.predict_proba(attacked)[0, 0] < 0.39
    assert fitted.predict(vectors) != labels
    assert fitted.predict(attacked) == labels
    assert fitted.accuracy(vectors, labels, epsilon=0.1) == 0.0


def test_the_unit_of_the_vectors_does_not_matter():
    vectors, labels = fragile(2)
    options = {"num_steps": 1, "num_updates": 100}
    one = fit_linear_probe(vectors, labels, epsilon=0.2, l2=1e-3, **options)
    far = fit_linear_probe(1e4 * vectors + 5, labels, epsilon=2e3, l2=1e5, **options)
    np.testing.assert_allclose(
        far.predict_proba(1e4 * vectors + 5), one.predict_proba(vectors), rtol=1e-4, atol=1e-6
    )


def test_the_seed_orders_the_rows_and_nothing_else_is_random():
    vectors, labels = fragile(3, rows=100)

    def fit(seed):
        return fit_linear_probe(
            vectors, labels, epsilon=0.2, num_steps=1, num_updates=20, batch_size=32, seed=seed
        ).kernel

    np.testing.assert_array_equal(fit(1), fit(1))
    assert not np.array_equal(fit(1), fit(2))


def test_every_row_is_met_once_before_any_is_met_again():
    batches = probe._batches(10, 4, seed=0)
    for _ in range(3):
        epoch = [next(batches) for _ in range(3)]
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(10))


def test_many_rows_are_taken_a_part_at_a_time(monkeypatch):
    vectors, labels = blobs()
    fitted = fit_linear_probe(vectors, labels, encoder=lambda x: 2.0 * x)
    whole = fitted.logits(vectors), fitted.attack(vectors, labels, epsilon=0.1)
    monkeypatch.setattr(probe, "_ROWS_AT_ONCE", 101)
    parts = fitted.logits(vectors), fitted.attack(vectors, labels, epsilon=0.1)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-12)


def test_a_label_that_was_not_fitted_is_never_found():
    vectors, labels = blobs()
    fitted = fit_linear_probe(vectors, labels)
    for epsilon in (0.0, 0.1):
        unseen = np.where(labels == 1, 9, labels)
        got = fitted.accuracy(vectors, unseen, epsilon=epsilon)
        assert 0 < got < fitted.accuracy(vectors, labels, epsilon=epsilon)
        assert fitted.accuracy(vectors, np.full(len(labels), 9), epsilon=epsilon) == 0.0


def test_vectors_that_tell_nothing_give_the_rates_of_the_classes():
    labels = np.array([0, 0, 0, 1])
    for epsilon in (0.0, 0.1):
        fitted = fit_linear_probe(np.ones((4, 2)), labels, epsilon=epsilon, num_updates=5)
        np.testing.assert_allclose(fitted.predict_proba(np.ones((1, 2))), [[0.75, 0.25]], rtol=1e-4)


def test_half_precision_and_tensors_are_taken():
    vectors, labels = blobs()
    half = tf.cast(vectors, tf.float16)
    got = fit_linear_probe(half, labels)
    expected = fit_linear_probe(half.numpy().astype(np.float32), labels)
    np.testing.assert_array_equal(got.kernel, expected.kernel)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": np.ones(4)}, r"`vectors` must be float of shape \[N, d\].*\(4,\)"),
        ({"vectors": np.ones((4, 2), int)}, "`vectors` must be float.*Received: int64"),
        ({"vectors": np.array([[1.0], [2], [np.nan], [4]])}, "finite.*1 rows.*first is row 2"),
        ({"labels": np.array([0, 1, 0])}, r"`labels` must be int of shape \[4\].*\(3,\)"),
        ({"labels": np.array([0.0, 1, 0, 1])}, "`labels` must be int.*Received: float64"),
        ({"labels": np.zeros(4, int)}, r"at least two classes. Received: \[0\] alone"),
        ({"epsilon": -1.0}, "`epsilon` must be at least 0. Received: -1.0"),
        ({"l2": 0.0}, "`l2` must be above 0. Received: 0.0"),
        ({"learning_rate": 0.0}, "`learning_rate` must be above 0. Received: 0.0"),
        ({"num_updates": 0}, "`num_updates` must be at least 1. Received: 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1. Received: 0"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"vectors": np.eye(4), "labels": np.array([0, 1, 0, 1]), **change}
    with pytest.raises(ValueError, match=message):
        fit_linear_probe(arguments.pop("vectors"), arguments.pop("labels"), **arguments)


def test_bad_rows_to_classify_are_named():
    fitted = fit_linear_probe(np.eye(4), np.array([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="`vectors` must be finite"):
        fitted.predict(np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match=r"`labels` must be among \[0, 1\].*labels\[1\]=5"):
        fitted.attack(np.eye(4)[:2], np.array([0, 5]), epsilon=0.1)
    with pytest.raises(ValueError, match="at least one row"):
        fitted.accuracy(np.zeros((0, 4)), np.zeros(0, int))
