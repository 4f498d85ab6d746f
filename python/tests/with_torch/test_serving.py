"""The loaders for serving engines follow the rules of the engines.

The engines are vLLM and SGLang, if they can be imported, or stand-ins for the parts of vLLM 0.32 and 0.33 and of SGLang
0.5.23 that the loaders use.
"""

import importlib.util
import sys
import types
import unittest
from types import SimpleNamespace
from unittest import mock

import torch

import cairn.torch
from device import Case


class BaseLoader:
    """The constructor that the engines' own loaders share: options of other loaders are refused."""

    options = ()

    def __init__(self, load_config):
        self.load_config = load_config
        if unknown := set(load_config.model_loader_extra_config) - set(self.options):
            raise ValueError(f"Unexpected extra config keys: {unknown}")


class VLLMLoader(BaseLoader):
    options = ("enable_multithread_load", "num_threads", "enable_weights_track")
    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = self._encoder_only_lm_prefixes = self._encoder_only_weights_mapper = None
        self.enable_weights_track = load_config.model_loader_extra_config.get("enable_weights_track")

    def _init_ep_weight_filter(self, model_config):
        if model_config.is_moe:
            self.local_expert_ids = {0}

    def _init_mm_encoder_only_weight_filter(self, model, model_config):
        if model_config.multimodal_config is not None and model_config.multimodal_config.mm_encoder_only:
            self._encoder_only_lm_prefixes = tuple(f"{n}." for n in model._language_model_names)
            self._encoder_only_weights_mapper = getattr(model, "hf_to_vllm_mapper", None)

    def load_weights(self, model, model_config):
        self._init_ep_weight_filter(model_config)
        self._init_mm_encoder_only_weight_filter(model, model_config)
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        track = model_config.quantization is None if self.enable_weights_track is None else self.enable_weights_track
        if track and (lacks := {name for name, _ in model.named_parameters()} - loaded):
            raise ValueError(f"Following weights were not initialized from checkpoint: {lacks}")


class WeightsMapper:
    def __init__(self, orig_to_new_prefix):
        self.prefixes = orig_to_new_prefix

    def map_name(self, name):
        return next((new + name[len(old):] for old, new in self.prefixes.items() if name.startswith(old)), name)


class SGLangLoader(BaseLoader):
    def _filter_mtp_weights(self, pairs, prefix, draft):
        return ((prefix + name.replace(f".layers.{draft}.", ".layers.0."), t) for name, t in pairs)


def stand_ins(modules):
    """Makes modules with these contents, and the packages that they are in."""
    found = {}
    for name, contents in modules.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        vars(found[name]).update(contents)
    return found


def skips(name, local):
    return local is not None and ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) not in local


ENGINES = {} if importlib.util.find_spec("vllm") else stand_ins({
    "vllm.config": {"get_current_vllm_config": None},
    "vllm.distributed": {"get_tensor_model_parallel_rank": None},
    "vllm.model_executor.model_loader": {"register_model_loader": None},
    "vllm.model_executor.model_loader.default_loader": {"DefaultModelLoader": VLLMLoader},
    "vllm.model_executor.model_loader.ep_weight_filter": {"should_skip_weight": skips},
    "vllm.model_executor.models.utils": {"WeightsMapper": WeightsMapper},
})
if not importlib.util.find_spec("sglang"):
    ENGINES |= stand_ins({"sglang.srt.model_loader.loader": {"DefaultModelLoader": SGLangLoader}})


class Net(torch.nn.Module):
    """A model with weight loading as the engines have it, and a parameter for each name."""

    _language_model_names = ("language_model",)

    def __init__(self, names, mapper=None):
        super().__init__()
        for name in names:
            self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(torch.zeros(3)))
        if mapper is not None:
            self.hf_to_vllm_mapper = mapper

    def load_weights(self, pairs):
        self.got = dict(pairs)
        for name, tensor in self.got.items():
            dict(self.named_parameters())[name.replace(".", "/")].data.copy_(tensor)
        return {name.replace(".", "/") for name in self.got}


class Loaders(Case):
    def setUp(self):
        super().setUp()
        sys.modules.update(ENGINES)
        self.addCleanup(lambda: [sys.modules.pop(name, None) for name in (*ENGINES, "cairn.vllm", "cairn.sglang")])

    def save(self, *names):
        cairn.torch.save({name: torch.full((3,), i + 1.0) for i, name in enumerate(names)}, self.path())

    def load_config(self, load_format, **options):
        return SimpleNamespace(load_format=load_format, model_loader_extra_config=options, draft_model_idx=None,
                               safetensors_load_strategy=None)


class VLLM(Loaders):
    def load(self, model, encoder_only=False, experts=0, quantization=None, **options):
        """Loads a model, and returns the loader."""
        import cairn.vllm

        parallel = SimpleNamespace(enable_expert_parallel=experts > 0, enable_ep_weight_filter=True, enable_eplb=False,
                                   data_parallel_size=1, tensor_parallel_size=experts,
                                   expert_placement_strategy="linear", prefill_context_parallel_size=1)
        config = SimpleNamespace(model=self.path(), model_weights="", revision=None, quantization=quantization,
                                 is_moe=experts > 0, multimodal_config=SimpleNamespace(mm_encoder_only=encoder_only),
                                 get_num_experts=lambda: experts)
        loader = cairn.vllm.Loader(self.load_config("cairn", **options))
        with mock.patch("vllm.config.get_current_vllm_config", lambda: SimpleNamespace(parallel_config=parallel)), \
                mock.patch("vllm.distributed.get_tensor_model_parallel_rank", lambda: 0):
            loader.load_weights(model, config)
        return loader

    def test_weights_that_the_checkpoint_lacks(self):
        self.save("a")
        self.load(Net(["a"]))
        for quantization, track, refused in ((None, None, True), (None, True, True), (None, False, False),
                                             ("fp8", None, False), ("fp8", True, True), ("fp8", False, False)):
            with self.subTest(quantization=quantization, track=track):
                options = {} if track is None else {"enable_weights_track": track}
                if refused:
                    with self.assertRaisesRegex(ValueError, "not initialized.*'b'"):
                        self.load(Net(["a", "b"]), quantization=quantization, **options)
                else:
                    self.load(Net(["a", "b"]), quantization=quantization, **options)

    def test_options(self):
        self.save("a")
        other = self.path("other")
        cairn.convert(self.path(), other, format="native")
        self.assertEqual(self.load(Net(["a"]), path=other, enable_weights_track=True).weights.path, other)
        for option in "pth", "num_threads":  # which is of no use here
            want = f"of vLLM has for cairn the option '{option}'; want path, .*, enable_weights_track$"
            with self.assertRaisesRegex(cairn.OptionsError, want):
                self.load(Net(["a"]), **{option: 1})

    def test_weights_that_the_model_does_not_use_are_not_read(self):
        class Draft(Net):
            def is_unused_checkpoint_weight(self, name):
                return not name.startswith("mtp.")

        self.save("layers.w", "mtp.w")
        model = Draft(["mtp.w"])
        self.assertEqual(self.load(model).weights.names(), ["mtp.w"])
        self.assertEqual(list(model.got), ["mtp.w"])

    def test_weights_beside_those_of_the_model(self):
        self.save("w")
        cairn.torch.save({"v": torch.ones(3), "text.v": torch.ones(3)}, self.path("more/vision"))
        model = Net(["w", "vision.v"])
        model.secondary_weights = [SimpleNamespace(
            model_or_path=self.path("more"), subfolder="vision", prefix="vision.",
            is_unused_weight=lambda name: name.startswith("text."))]
        self.load(model)
        self.assertEqual(set(model.got), {"w", "vision.v"})

    def test_an_encoder_without_its_language_model(self):
        from vllm.model_executor.models.utils import WeightsMapper

        self.save("language_model.w", "visual.w")
        self.assertEqual(self.load(Net(["visual.w"]), encoder_only=True).weights.names(), ["visual.w"])
        self.assertEqual(len(self.load(Net(["visual.w", "language_model.w"])).weights), 2)

        self.save("model.text.w", "model.visual.w")
        mapper = WeightsMapper(orig_to_new_prefix={"model.text.": "language_model.", "model.visual.": "visual."})
        loader = self.load(Net(["model.visual.w"], mapper), encoder_only=True)
        self.assertEqual(loader.weights.names(), ["model.visual.w"])

    def test_experts_of_other_ranks_are_not_read(self):
        self.save("experts.0.w", "mlp.experts.0.up.weight", "mlp.experts.1.up.weight", "norm.weight")
        names = ["experts.0.w", "mlp.experts.0.up.weight", "norm.weight"]
        self.assertEqual(self.load(Net(names), experts=2).weights.names(), names)


class SGLang(Loaders):
    def test_the_loader(self):
        import cairn.sglang

        self.save("w", "model.mtp.layers.1.v")
        source = SimpleNamespace(model_or_path=self.path(), model_config=object(), prefix="p.", revision=None)
        with mock.patch("cairn.sglang._first", None):
            loader = cairn.sglang.Loader(self.load_config(cairn.sglang.Loader))
            self.assertEqual([name for name, _ in loader._get_weights_iterator(source, resolved_source=None)],
                             ["p.model.mtp.layers.1.v", "p.w"])
            loader.load_config.draft_model_idx = 1
            self.assertEqual([name for name, _ in loader._get_weights_iterator(source)],
                             ["p.model.mtp.layers.0.v", "p.w"])
            with self.assertRaisesRegex(cairn.OptionsError, "of SGLang has for cairn the option 'pth'; want path, "):
                cairn.sglang.Loader(self.load_config(cairn.sglang.Loader, pth=1))


if __name__ == "__main__":
    unittest.main()
