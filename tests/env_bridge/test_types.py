"""Anchor hashes are part of saved rollouts, so they must never change."""

from gigpo_jax.env_bridge.types import anchor_hash


def test_anchor_hash_is_fixed():
    # The digests are from `b2sum -l 64`: e4a6a0577479b2b4 and b82875aedb584d8d, as
    # little-endian lanes.
    assert anchor_hash("") == (0x57A0A6E4, 0xB4B27974)
    assert (
        anchor_hash("You open the fridge 1.")
        == anchor_hash(b"You open the fridge 1.")
        == (0xAE7528B8, 0x8D4D58DB)
    )


def test_lone_surrogates_do_not_raise():
    assert anchor_hash("\ud800") != anchor_hash("")
