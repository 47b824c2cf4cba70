"""The drop-ins have their packages' own signatures: written down here, and compared with the package where it is."""

import ast
import importlib
import importlib.metadata
import inspect

import pytest

FLASH_ATTN = {  # flash-attn 2.8.3
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False block_table=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None "
    "cache_batch_idx=None cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1,-1) "
    "softcap=0.0 rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False",
}
FLA = {  # fla-core 0.6.0
    "chunk_gated_delta_rule": "q k v g beta scale=None initial_state=None output_final_state=False "
    "use_qk_l2norm_in_kernel=False use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False "
    "cu_seqlens=None cu_seqlens_cpu=None chunk_indices=None cp_context=None **kwargs",
    "fused_recurrent_gated_delta_rule": "q k v g=None gk=None gv=None beta=None scale=None initial_state=None "
    "output_final_state=False use_qk_l2norm_in_kernel=False use_gate_in_kernel=False A_log=None dt_bias=None "
    "use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False cu_seqlens=None **kwargs",
}
FLASH_QLA = {  # flash-qla 0.1.3
    "chunk_gated_delta_rule": "q k v g beta scale=None initial_state=None output_final_state=False "
    "use_qk_l2norm_in_kernel=False cu_seqlens=None head_first=False state_v_first=False auto_cp=True "
    "enable_fwd_cp_cache=True cp_context=None force_intra_cp=False",
    "chunk_gated_delta_rule_fwd": "q k v g beta scale=None initial_state=None cu_seqlens=None output_final_state=True "
    "output_h=False auto_cp=True state_v_first=False enable_fwd_cp_cache=False cp_context=None is_train=None",
}
FLASHINFER = {  # flashinfer-python 0.7.4
    "chunk_gated_delta_rule": "q k v g=None beta=None scale=None initial_state=None output_final_state=False "
    "cu_seqlens=None use_qk_l2norm_in_kernel=False output=None output_state=None state_checkpoints=None "
    "checkpoint_cu_starts=None checkpoint_every_n_tokens=0 use_cp='auto' state_indices=None _cp_chunk_len=None "
    "backend='auto' max_seqlen=None gate_domain='linear' use_gate_in_kernel=False A_log=None dt_bias=None "
    "beta_is_logit=False cu_seqlens_cpu=None output_state_indices=None checkpoint_state_indices=None prefix_lens=None",
    "gated_delta_rule_decode_pretranspose": "q k v state A_log a dt_bias b scale=None output=None use_qk_l2norm=True "
    "initial_state=None initial_state_indices=None output_state_indices=None intermediate_states_buffer=None "
    "disable_state_update=False backend='auto'",
    "gated_delta_rule_mtp": "q k v initial_state initial_state_indices A_log a dt_bias b scale=None output=None "
    "intermediate_states_buffer=None ssm_state_indices=None disable_state_update=None use_qk_l2norm=True "
    "output_state_indices=None cache_replayssm=False replayssm_rawv=None replayssm_rawk=None replayssm_g=None "
    "replayssm_beta=None",
    "gated_delta_rule_decode": "q k v state A_log a dt_bias b scale=None output=None use_qk_l2norm=True backend='auto'",
}
# module, the package's file, name, signature
ALL = [
    *(("flash_attn", "flash-attn", "flash_attn/flash_attn_interface.py", *row) for row in FLASH_ATTN.items()),
    *(("fla", "fla-core", "fla/ops/gated_delta_rule", *row) for row in FLA.items()),
    *(
        ("flash_qla", "flash-qla", "flash_qla/ops/gated_delta_rule/chunk/__init__.py", *row)
        for row in FLASH_QLA.items()
    ),
    *(("flashinfer", "flashinfer-python", "flashinfer/gdn_", *row) for row in FLASHINFER.items()),
]


def written(function):
    parts = []
    for p in inspect.signature(function).parameters.values():
        stars = {p.VAR_KEYWORD: "**", p.VAR_POSITIONAL: "*"}.get(p.kind, "")
        default = "" if p.default is p.empty else "=" + repr(p.default).replace(" ", "")
        parts.append(stars + p.name + default)
    return " ".join(parts)


def written_in_source(arguments):
    """The same of a function's ast.arguments: packages that need a card to import can be read all the same."""
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    pairs = [*zip(plain, defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    parts = [a.arg + ("" if d is None else "=" + ast.unparse(d).replace(" ", "")) for a, d in pairs]
    return " ".join(parts + (["**" + arguments.kwarg.arg] if arguments.kwarg else []))


@pytest.mark.parametrize("module, package, file, name, text", ALL)
def test_signature(module, package, file, name, text):
    assert written(getattr(importlib.import_module(f"flashdelta.compat.{module}"), name)) == text


@pytest.mark.parametrize("module, package, file, name, text", ALL)
def test_signature_is_the_packages_own(module, package, file, name, text):
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    found = []
    for path in files:
        if str(path).startswith(file) and path.suffix == ".py":
            tree = ast.parse(path.read_text())
            found += [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found
    assert text in {written_in_source(node.args) for node in found}
