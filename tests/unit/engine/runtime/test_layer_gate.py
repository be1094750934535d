"""A forward waits for each layer of a state that is being filled."""

from __future__ import annotations

import threading

import pytest

from services.engine.runtime.gate import LayerGate, LayersMissing


def test_open_layers_do_not_wait_and_the_next_one_does():
    gate = LayerGate()
    gate.open(2)
    gate.wait(0, 0)
    gate.wait(1, 0)
    with pytest.raises(LayersMissing, match="layer 2 of a slow restore"):
        gate.wait(2, 0.01)


def test_who_waits_goes_on_when_its_layer_comes():
    gate, passed = LayerGate(), threading.Event()

    def consume() -> None:
        for layer in range(3):
            gate.wait(layer, 10)
        passed.set()

    thread = threading.Thread(target=consume)
    thread.start()
    for num_layers in (1, 2):
        gate.open(num_layers)
        assert not passed.is_set()
    gate.open(3)
    assert passed.wait(10)
    thread.join()


def test_who_waits_is_told_of_a_failure_and_open_layers_stay_open():
    gate, failed = LayerGate(), threading.Event()
    gate.open(1)

    def consume() -> None:
        with pytest.raises(LayersMissing, match="layer 1 of a failed restore"):
            gate.wait(1, 10)
        failed.set()

    thread = threading.Thread(target=consume)
    thread.start()
    gate.fail()
    assert failed.wait(10)
    thread.join()
    gate.wait(0, 0)


def test_the_first_layer_is_announced_once():
    gate, calls = LayerGate(), []
    gate.on_open = lambda: calls.append(1)
    gate.open(0)
    gate.open(1)
    gate.open(5)
    assert calls == [1]
