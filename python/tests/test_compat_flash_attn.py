"""flash-attn's drop-ins: dense, packed, with a cache, paged; and what they refuse."""

import pytest
import torch

from flashdelta.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from reference import assert_close, attention, attention_inputs, error

B16 = torch.bfloat16


@pytest.mark.parametrize("head_dim", [64, 100])
def test_func(device, head_dim):
    q, k, v = attention_inputs(2, 50, 80, 4, 2, head_dim, device=device)
    assert_close(flash_attn_func(q, k, v, 0.0, None, True), attention(q, k, v, causal=True)[0], B16)
    o, lse, pattern = flash_attn_func(
        q, k, v, softmax_scale=0.3, window_size=(9, 4), softcap=5.0, return_attn_probs=True
    )
    expected, expected_lse = attention(q, k, v, scale=0.3, left=9, right=4, softcap=5.0)
    assert_close(o, expected, B16)
    assert error(lse, expected_lse) < 1e-3 and pattern.numel() == 0


def test_rows_that_see_nothing(device):
    q, k, v = attention_inputs(1, 9, 4, 1, 1, 64, device=device)
    o, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (o[:, :5] == 0).all() and (lse[..., :5] == torch.inf).all() and torch.isfinite(lse[..., 5:]).all()


def test_varlen_packed_and_paged(device):
    lengths_q, lengths_k = [3, 20], [40, 20]
    parts = [attention_inputs(1, a, b, 4, 2, 64, device=device) for a, b in zip(lengths_q, lengths_k)]
    q, k, v = (torch.cat(x, 1)[0] for x in zip(*parts))
    cu_q, cu_k = (torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32, device=device)
                  for x in (lengths_q, lengths_k))  # fmt: skip
    expected = torch.cat([attention(*part, causal=True)[0][0] for part in parts])
    o, lse, _ = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 20, 40, causal=True, return_attn_probs=True)
    assert_close(o, expected, B16)
    assert lse.shape == (4, 23)
    table = torch.tensor([[3, 0, 2], [1, 4, 0]], dtype=torch.int32, device=device)
    pages = torch.zeros(2, 5, 16, 2, 64, device=device, dtype=B16)
    for row, (start, length) in enumerate(((0, 40), (40, 20))):
        for token in range(length):
            page = table[row, token // 16]
            pages[0, page, token % 16], pages[1, page, token % 16] = k[start + token], v[start + token]
    o = flash_attn_varlen_func(q, *pages, cu_q, cu_k, 20, 40, causal=True, block_table=table)
    assert_close(o, expected, B16)


@pytest.mark.parametrize("paged", [False, True])
def test_with_kvcache(device, paged):
    """Two steps of three tokens each: the cache holds what was written, and attention sees it."""
    batch, room, rows = 2, 64, 4
    lengths = torch.tensor([10, 25], dtype=torch.int32, device=device)
    where = torch.tensor([3, 1], dtype=torch.int32, device=device)
    dense = torch.randn(2, rows, room, 2, 64, device=device).to(B16)
    if paged:
        table = torch.tensor([[7, 0, 5, 2], [1, 6, 3, 4]], dtype=torch.int32, device=device)
        caches = torch.zeros(2, 8, 16, 2, 64, device=device, dtype=B16)
        for row in range(batch):
            for page in range(4):
                caches[:, table[row, page]] = dense[:, where[row], 16 * page : 16 * page + 16]
        place = {"block_table": table}
    else:
        caches, place = dense.clone(), {"cache_batch_idx": where}
    k_cache, v_cache = caches
    for step in range(2):
        q, k, v = attention_inputs(batch, 3, 3, 4, 2, 64, device=device)
        o, lse = flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, return_softmax_lse=True, **place
        )
        for row in range(batch):
            at = int(lengths[row])
            dense[0, where[row], at : at + 3], dense[1, where[row], at : at + 3] = k[row], v[row]
            own = dense[:, where[row], None, : at + 3]
            expected, expected_lse = attention(q[row : row + 1], own[0], own[1], causal=True)
            assert_close(o[row : row + 1], expected, B16)
            assert error(lse[row : row + 1], expected_lse) < 1e-3
        lengths = lengths + 3


def test_with_kvcache_one_length(device):
    q, k, v = attention_inputs(2, 1, 30, 2, 2, 64, device=device)
    o = flash_attn_with_kvcache(q, k, v, cache_seqlens=17)
    assert_close(o, attention(q, k[:, :17], v[:, :17])[0], B16)
    assert_close(flash_attn_with_kvcache(q, k, v), attention(q, k, v)[0], B16)


Q = torch.zeros(1, 4, 2, 64, dtype=B16)


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: flash_attn_func(Q, Q, Q, 0.1), NotImplementedError, "dropout_p=0.1 .*dropout_p=0.0"),
        (lambda: flash_attn_func(Q, Q, Q, alibi_slopes=Q), NotImplementedError, "alibi_slopes=a tensor"),
        (lambda: flash_attn_func(Q, Q, 3), TypeError, "v: expected a torch tensor, got int"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, rotary_cos=Q), NotImplementedError, "rotary_cos"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, cache_leftpad=Q), NotImplementedError, "cache_leftpad"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, num_splits=4), NotImplementedError, "num_splits=4 .* plan"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, rotary_interleaved=False), NotImplementedError, "rotary_interleaved"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, Q), ValueError, "k, v: expected both"),
        (lambda: flash_attn_with_kvcache(Q, Q, Q, Q, Q), ValueError, "cache_seqlens"),
    ],
)
def test_what_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda q: flash_attn_func(q, Q, Q),
        lambda q: flash_attn_varlen_func(q[0], Q[0], Q[0], torch.tensor([0, 4]), torch.tensor([0, 4]), 4, 4),
        lambda q: flash_attn_with_kvcache(q, Q, Q),
    ],
)
def test_backward_is_refused(call):
    q = Q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="attention_backward: not supported on cpu"):
        call(q).sum().backward()
    assert q.grad is None
