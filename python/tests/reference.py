"""The operations as their definitions, in float64, and random inputs."""

import torch

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 1e-4}


def error(got, expected):
    got, expected = got.double().cpu(), expected.double().cpu()
    assert torch.isfinite(got).all()
    return ((got - expected).norm() / expected.norm().clamp_min(1e-300)).item()


def assert_close(got, expected, dtype):
    assert got.shape == expected.shape
    assert error(got, expected) <= TOLERANCE[dtype]


def same_tokens(got, expected, ids, expected_ids):
    """Greedy tokens of two runs, logits [steps,B,vocabulary] and ids [B,steps]: the same, row by row, until the logits
    of the expected run lie so near each other that the runs' difference there decides. Returns how many are the same.
    """
    count = 0
    for row in range(ids.shape[0]):
        for step in range(ids.shape[1]):
            token, other = expected_ids[row, step], ids[row, step]
            if token == other:
                count += 1
                continue
            mine, logits = got[step, row].double(), expected[step, row].double()
            assert logits[token] - logits[other] <= 2 * (mine - logits).abs().max() < 0.05 * logits.abs().max()
            break  # what follows has another prompt
    return count


def attention(q, k, v, causal=False, scale=None, left=-1, right=-1, softcap=0.0, sink=None):
    """Dense q [B,TQ,HQ,D], k and v [B,TK,HK,..]; returns o and lse [B,HQ,TQ]."""
    q, k, v = (x.double().cpu().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    keys = torch.arange(k.shape[2])[None]
    right = 0 if causal else right
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if left >= 0:
        seen &= keys >= at - left
    if right >= 0:
        seen &= keys <= at + right
    s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.double().cpu()[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(s, -1)
    p = torch.softmax(s, -1).nan_to_num(0)
    return (p[..., : k.shape[2]] @ v).transpose(1, 2), lse


def gated_delta(q, k, v, g, beta, initial_state=None, scale=None, l2norm=False):
    """Token by token; returns o and the state after every token, [B,T,HV,K,V]."""
    q, k, v, g, beta = (x.double().cpu() for x in (q, k, v, g, beta))
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    if l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch, tokens, heads, width = v.shape
    state = torch.zeros(batch, heads, q.shape[-1], width, dtype=torch.float64)
    if initial_state is not None:
        state = initial_state.double().cpu()
    o, states = torch.empty(v.shape, dtype=torch.float64), []
    for t in range(tokens):
        state = state * g[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o[:, t] = scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t])
        states.append(state)
    return o, torch.stack(states, 1) if states else state[:, None][:, :0]


def attention_inputs(batch, tq, tk, hq, hk, d, dtype=torch.bfloat16, device="cpu", dv=None):
    shapes = (batch, tq, hq, d), (batch, tk, hk, d), (batch, tk, hk, dv or d)
    return tuple(torch.randn(s, device=device).to(dtype) for s in shapes)


def delta_inputs(batch, tokens, hk, hv, k=128, v=128, dtype=torch.bfloat16, device="cpu", normalised=True):
    """q, k, v, g, beta as a layer makes them: keys of norm 1 unless the call normalises, slow and fast gates."""
    q, key = (torch.randn(batch, tokens, hk, k, device=device) for _ in range(2))
    if normalised:
        q, key = (torch.nn.functional.normalize(x, dim=-1) for x in (q, key))
    value = torch.randn(batch, tokens, hv, v, device=device)
    g = -torch.rand(batch, tokens, hv, device=device) * torch.linspace(0.01, 2, hv, device=device)
    beta = torch.rand(batch, tokens, hv, device=device)
    return q.to(dtype), key.to(dtype), value.to(dtype), g, beta
