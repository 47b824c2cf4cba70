"""Ways to run transformers' Qwen3.5 and Qwen3-Next layers (flashdelta, flash-linear-attention, torch); their times."""

import functools
import inspect
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import DynamicCache

from flashdelta.integrations import transformers as fdelta

RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def compile_side_by_side():
    """Triton's autotuner compiles its configurations one after another; with this it finds them all compiled."""
    from triton.runtime.autotuner import Autotuner

    pool, prune = ThreadPoolExecutor(12), Autotuner.prune_configs

    def pruned(self, kwargs, *rest, **more):
        configs, arguments = prune(self, kwargs, *rest, **more), list(self.nargs.values())

        def compiled(config):
            try:
                self.fn.run(*arguments, **{**kwargs, **config.all_kwargs(), "warmup": True})
            except Exception:  # the autotuner will meet it again and drop the configuration
                pass

        list(pool.map(compiled, configs))
        return configs

    Autotuner.prune_configs = pruned


def of_package():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    def rule(function):
        known = set(inspect.signature(function).parameters) - {"kwargs"}
        return lambda q, k, v, **kw: function(q, k, v, **{name: x for name, x in kw.items() if name in known})

    return [rule(chunk_gated_delta_rule), rule(fused_recurrent_gated_delta_rule)]


class Variants:
    """By name, functions that prepare a module of transformers and return the attention implementation to set.

    Two hold the layers' other parts alike: "flashdelta, kernels alone" has transformers' convolution and norm, as the
    peers have, and "flash-linear-attention + SDPA, our layers" has flashdelta's, as flashdelta has.
    """

    def __init__(self, module):
        self.module = module
        self.torch_rules = [getattr(function, "__wrapped__", function) for function in map(self._rule, RULES)]
        self.all = {
            "flashdelta": functools.partial(self._flashdelta, True),
            "flashdelta, kernels alone": functools.partial(self._flashdelta, False),
        }
        try:
            fla = of_package()
        except ImportError as why:
            print(f"flash-linear-attention: {why}")
        else:
            self.all["flash-linear-attention + SDPA"] = functools.partial(self._switch, fla, "sdpa")
            self.all["flash-linear-attention + SDPA (FlashAttention-2)"] = functools.partial(self._switch, fla, "sdpa")
            self.all["flash-linear-attention + SDPA, our layers"] = functools.partial(self._our_layers, fla)
        self.all["torch + SDPA"] = functools.partial(self._switch, self.torch_rules, "sdpa")
        self.all["torch + eager"] = functools.partial(self._switch, self.torch_rules, "eager")

    def _rule(self, name):
        return getattr(self.module, name)

    def _switch(self, functions, attention):
        fdelta.disable()
        for name, function in zip(RULES, functions):
            setattr(self.module, name, function)
        return attention

    def _our_layers(self, functions):
        fdelta.disable()
        fdelta.enable()
        for name, function in zip(RULES, functions):
            setattr(self.module, name, function)
        return "sdpa"

    def _flashdelta(self, layers):
        fdelta.disable()
        fdelta.enable(layers=layers)
        return fdelta.NAME

    def use(self, name, model):
        model.set_attn_implementation(self.all[name]())
        torch.backends.cuda.enable_cudnn_sdp("FlashAttention-2" not in name)


def milliseconds(call, runs):
    """Median of a card's time, after one run to warm up."""
    call()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def decode_milliseconds(model, ids, steps, **keywords):
    """Milliseconds a token by the host's clock, after a prefill of ids: the median of single steps."""
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache, use_cache=True, **keywords)
    times = []
    for _ in range(steps + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(ids[:, :1], past_key_values=cache, use_cache=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) * 1e3
