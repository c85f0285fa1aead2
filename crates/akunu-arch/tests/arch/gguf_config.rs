//! Which configuration is read from GGUF metadata, and what is rejected.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{
    EmbeddingFacts, ExpertFacts, GgufModel, ModelConfig, Pooling, RopeScaling, Router, Scores,
    SuggestedSampling, WeightProvider, Window, WindowPattern,
};
use akunu_format::quantise::Mix;
use akunu_format::{Array, DType, FormatError, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};

const LAYERS: u32 = 4;

/// A file of four layers; keys are given without the architecture's name.
struct File {
    architecture: &'static str,
    metadata: Metadata,
    tensors: Vec<TensorSpec>,
}

fn file(architecture: &'static str) -> File {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String(architecture.into()));
    let mut tensors = vec![TensorSpec::new("token_embd.weight", DType::F32, [3, 32])];
    for layer in 0..LAYERS {
        tensors.push(TensorSpec::new(format!("blk.{layer}.attn_norm.weight"), DType::F32, [32]));
    }
    File { architecture, metadata, tensors }
        .with("context_length", Value::U32(128))
        .with("embedding_length", Value::U32(32))
        .with("block_count", Value::U32(LAYERS))
        .with("feed_forward_length", Value::U32(64))
        .with("attention.head_count", Value::U32(4))
        .with("attention.head_count_kv", Value::U32(2))
        .with("attention.layer_norm_rms_epsilon", Value::F32(1e-5))
}

impl File {
    fn with(mut self, key: &str, value: Value) -> File {
        self.metadata.insert(format!("{}.{key}", self.architecture), value);
        self
    }

    fn without(mut self, key: &str) -> File {
        let gone = format!("{}.{key}", self.architecture);
        let mut metadata = Metadata::default();
        for (key, value) in self.metadata.iter().filter(|(key, _)| *key != gone) {
            metadata.insert(key, value.clone());
        }
        self.metadata = metadata;
        self
    }

    fn layer_norm(self) -> File {
        self.with("attention.layer_norm_epsilon", Value::F32(1e-12))
    }

    fn tensor(mut self, name: &str) -> File {
        self.tensors.push(TensorSpec::new(name, DType::F32, [32]));
        self
    }

    fn open(self) -> Result<GgufModel, FormatError> {
        let mut writer = GgufWriter::new(Vec::new(), &self.metadata, self.tensors).unwrap();
        while let Some(bytes) = writer.next_spec().map(|spec| spec.bytes().unwrap()) {
            writer.tensor(|out| out.write_all(&vec![0; bytes])).unwrap();
        }
        GgufModel::from_gguf(Gguf::from_region(Region::from_vec(writer.finish().unwrap()))?)
    }

    fn config(self) -> ModelConfig {
        self.open().unwrap().config().clone()
    }

    #[track_caller]
    fn refused(self, expected: &str) {
        assert_eq!(self.open().unwrap_err().to_string(), expected);
    }

    #[track_caller]
    fn refused_with(self, part: &str) {
        let error = self.open().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

#[test]
fn plain_llama() {
    let config = file("llama").config();
    assert_eq!((config.vocab_size, config.context_length, config.layer_count), (3, 128, 4));
    assert_eq!((config.head_count, config.kv_head_count, config.head_dim, config.ffn_size), (4, 2, 8, 64));
    assert_eq!((config.rope.dims, config.rope.base, config.rope.local_base), (8, 10_000.0, None));
    assert_eq!(config.rope.scaling, RopeScaling::None);
    assert_eq!((config.window, config.attention_scale, config.activation), (None, None, None));
    let config = file("llama").without("attention.head_count_kv").config();
    assert_eq!(config.kv_head_count, 4);
}

#[test]
fn integers_of_any_type_are_accepted() {
    let config = file("llama")
        .with("block_count", Value::U16(4))
        .with("context_length", Value::U64(128))
        .with("attention.head_count", Value::Array(Array::I32(vec![4; 4])))
        .with("attention.head_count_kv", Value::Array(Array::U32(vec![2; 4])))
        .with("feed_forward_length", Value::Array(Array::U16(vec![64; 5])))
        .with("rope.freq_base", Value::F64(500_000.0))
        .config();
    assert_eq!((config.head_count, config.kv_head_count, config.ffn_size), (4, 2, 64));
    assert_eq!(config.rope.base, 500_000.0);
    file("llama")
        .with("block_count", Value::I32(-4))
        .refused("metadata key `llama.block_count`: -4 is out of range");
    file("llama")
        .with("block_count", text("4"))
        .refused("key `llama.block_count` should be an integer, but is string");
}

#[test]
fn different_values_per_layer_are_rejected() {
    file("llama")
        .with("attention.head_count_kv", Value::Array(Array::I32(vec![2, 2, 1, 2])))
        .refused("`llama.attention.head_count_kv` differs from layer to layer, which is not supported");
    file("llama")
        .with("feed_forward_length", Value::Array(Array::I32(vec![64; 3])))
        .refused("metadata key `llama.feed_forward_length`: it has 3 entries for 4 layers");
    file("llama")
        .with("attention.key_length", Value::U32(16))
        .with("attention.value_length", Value::U32(8))
        .refused(
            "`llama.attention.value_length` is 8, but the size of key heads is 16, which is not supported",
        );
}

#[test]
fn rope_scaling() {
    let scaled = |kind: &str| {
        file("qwen2").with("rope.scaling.type", text(kind)).with("rope.scaling.factor", Value::F32(4.0))
    };
    assert_eq!(scaled("none").config().rope.scaling, RopeScaling::None);
    assert_eq!(scaled("linear").config().rope.scaling, RopeScaling::Linear { factor: 4.0 });
    let legacy = file("llama").with("rope.scale_linear", Value::F32(2.0)).config();
    assert_eq!(legacy.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    assert_eq!(
        scaled("yarn").config().rope.scaling,
        RopeScaling::Yarn {
            factor: 4.0,
            original_context: 128,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            exact_ramp: false,
        }
    );
    let RopeScaling::Yarn { original_context, beta_fast, attention_factor, .. } = scaled("yarn")
        .with("rope.scaling.original_context_length", Value::U32(32))
        .with("rope.scaling.yarn_beta_fast", Value::F32(16.0))
        .with("rope.scaling.attn_factor", Value::F32(0.5))
        .config()
        .rope
        .scaling
    else {
        panic!("not YaRN")
    };
    assert_eq!((original_context, beta_fast), (32, 16.0));
    assert_eq!(attention_factor, Some(0.5 * (0.1 * 4f64.ln() + 1.0)));
    scaled("longrope").refused("`qwen2.rope.scaling.type` is longrope, which is not supported");
    scaled("yarn")
        .with("rope.scaling.yarn_log_multiplier", Value::F32(0.1))
        .refused("`qwen2.rope.scaling.yarn_log_multiplier` is 0.1, which is not supported");
    scaled("linear").with("rope.scaling.attn_factor", Value::F32(1.19)).refused(
        "`qwen2.rope.scaling.attn_factor` is 1.190000057220459 without YaRN, which is not supported",
    );
}

#[test]
fn gemmas_windows_scales_and_bases() {
    let gemma2 = file("gemma2").with("attn_logit_softcapping", Value::F32(50.0)).config();
    assert_eq!(gemma2.window, Some(Window { size: 4096, pattern: WindowPattern::Unstated }));
    assert_eq!((gemma2.attention_soft_cap, gemma2.logit_soft_cap), (Some(50.0), None));
    assert_eq!((gemma2.rope.local_base, gemma2.attention_scale), (None, None));

    let gemma3 = file("gemma3")
        .with("rope.freq_base", Value::F32(1e6))
        .with("attention.sliding_window", Value::U32(512))
        .config();
    assert_eq!(gemma3.window, Some(Window { size: 512, pattern: WindowPattern::Unstated }));
    assert_eq!((gemma3.rope.base, gemma3.rope.local_base), (1e6, Some(10_000.0)));
    let gemma3 = file("gemma3").with("rope.freq_base_swa", Value::F32(20_000.0)).config();
    assert_eq!((gemma3.window, gemma3.rope.local_base), (None, Some(20_000.0)));

    let pattern = |value| {
        let window = file("gemma3")
            .with("attention.sliding_window", Value::U32(512))
            .with("attention.sliding_window_pattern", value)
            .open()
            .map(|model| model.config().window.clone().unwrap().pattern);
        window.map_err(|error| error.to_string())
    };
    assert_eq!(pattern(Value::U32(6)), Ok(WindowPattern::FullEvery(6)));
    let layers = vec![true, true, false, true];
    assert_eq!(pattern(Value::Array(Array::Bool(layers.clone()))), Ok(WindowPattern::Layers(layers.clone())));
    assert_eq!(pattern(Value::Array(Array::I32(vec![1, 1, 0, 1, 0]))), Ok(WindowPattern::Layers(layers)));
    let key = "metadata key `gemma3.attention.sliding_window_pattern`";
    assert_eq!(pattern(Value::U32(0)), Err(format!("{key}: 0 is not a valid interval of layers")));
    let short = Value::Array(Array::Bool(vec![true]));
    assert_eq!(pattern(short), Err(format!("{key}: it has 1 entries for 4 layers")));
}

#[test]
fn the_largest_gemmas_scale_by_hidden_size() {
    for (architecture, layers, expected) in
        [("gemma2", 46, Some(8f32.powf(-0.5))), ("gemma2", 42, None), ("gemma3", 62, Some(8f32.powf(-0.5)))]
    {
        let mut file = file(architecture)
            .with("block_count", Value::U32(layers))
            .with("attention.key_length", Value::U32(16));
        for layer in LAYERS..layers {
            file = file.tensor(&format!("blk.{layer}.attn_norm.weight"));
        }
        let scale = file.config().attention_scale;
        assert_eq!(scale.is_some(), expected.is_some(), "{architecture} {layers}");
        if let (Some(scale), Some(expected)) = (scale, expected) {
            assert!((scale - expected).abs() < 1e-6);
        }
    }
    assert_eq!(file("llama").with("attention.scale", Value::F32(0.25)).config().attention_scale, Some(0.25));
}

#[test]
fn a_mixture_states_how_many_experts_it_has_and_uses() {
    let mixture = |count: u32, used: u32| {
        file("llama").with("expert_count", Value::U32(count)).with("expert_used_count", Value::U32(used))
    };
    let experts = mixture(8, 2).config().experts.unwrap();
    // The experts of Mixtral are as large as its dense parts would be, and their shares are normalised.
    let ffn_size = mixture(8, 2).config().ffn_size;
    assert_eq!(
        experts,
        ExpertFacts {
            count: 8,
            used: 2,
            ffn_size,
            shared_ffn_size: None,
            normalised: true,
            scale: 1.0,
            groups: [1, 1],
            router: Router::SOFTMAX,
        }
    );
    assert_eq!(mixture(0, 0).config().experts, None);
    assert_eq!(file("llama").config().experts, None);
    let other = mixture(8, 2).with("expert_weights_norm", Value::Bool(false));
    assert!(!other.config().experts.unwrap().normalised);
    mixture(8, 9).refused_with("each token is routed to 9 of 8");
    mixture(8, 0).refused_with("each token is routed to 0 of 8");
    mixture(2000, 2).refused_with("at most 1024 experts are supported");
    file("llama").with("expert_count", Value::U32(8)).refused_with("`llama.expert_used_count` is missing");
}

#[test]
fn routers_in_metadata() {
    let mixture = || {
        let of = [("expert_count", 12), ("expert_used_count", 3), ("expert_feed_forward_length", 24)];
        of.into_iter().fold(file("glm4moe"), |file, (key, number)| file.with(key, Value::U32(number)))
    };
    let experts = |file: File| file.config().experts.unwrap();
    let plain = experts(mixture());
    assert_eq!((plain.router.scores, plain.scale, plain.groups), (Scores::Sigmoid, 1.0, [1, 1]));
    assert_eq!((plain.shared_ffn_size, plain.normalised), (None, false));
    let number = |key: &str, number: u32| mixture().with(key, Value::U32(number));
    assert_eq!(experts(number("expert_gating_func", 1)).router.scores, Scores::Softmax);
    assert_eq!(experts(number("expert_gating_func", 0)).router.scores, Scores::Sigmoid);
    number("expert_gating_func", 3).refused("`glm4moe.expert_gating_func` is 3, which is not supported");
    assert_eq!(experts(number("expert_shared_count", 2)).shared_ffn_size, Some(48));
    // 0 means "none", as other engines write it.
    assert_eq!(experts(mixture().with("expert_weights_scale", Value::F32(0.0))).scale, 1.0);
    assert_eq!(experts(mixture().with("expert_weights_scale", Value::F32(2.5))).scale, 2.5);
    mixture().with("expert_weights_scale", Value::F32(f32::NAN)).refused_with("NaN is out of range");
    let groups = |count: u32, used: u32| {
        number("expert_group_count", count).with("expert_group_used_count", Value::U32(used))
    };
    assert_eq!(experts(groups(4, 2)).groups, [4, 2]);
    assert_eq!(experts(groups(0, 0)).groups, [1, 1]);
    groups(5, 1).refused_with("12 experts in 5 groups, of which 1 are used");
    groups(3, 4).refused_with("12 experts in 3 groups, of which 4 are used");
    groups(6, 1).refused_with("each token is routed to 3 experts of 1 groups, which have 2 each");
    groups(12, 3).refused_with("groups of 1 expert cannot be ranked by their two best ones");
}

#[test]
fn layers_that_predict_further_tokens_are_not_counted() {
    let with = |further: u32| {
        let last = LAYERS - 1;
        let file = file("glm4moe").with("nextn_predict_layers", Value::U32(further));
        file.tensor(&format!("blk.{last}.nextn.eh_proj.weight"))
    };
    let model = with(1).open().unwrap();
    assert_eq!(model.config().layer_count, LAYERS as usize - 1);
    assert_eq!(model.config().left_out.as_deref(), Some("layers that predict further tokens"));
    assert!(model.tensor("blk.3.nextn.eh_proj.weight").is_none());
    let recipe =
        ConvertOptions { mix: Mix::find("F32").unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(&model, &recipe).unwrap();
    let bytes = conversion.write(Vec::new(), 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let gguf = Gguf::from_region(Region::from_vec(bytes)).unwrap();
    assert_eq!(gguf.metadata().u32("glm4moe.block_count").unwrap(), Some(LAYERS - 1));
    assert_eq!(gguf.metadata().u32("glm4moe.nextn_predict_layers").unwrap(), Some(0));
    assert_eq!(GgufModel::from_gguf(gguf).unwrap().config().left_out, None);
    with(0).refused_with("tensor blk.3.nextn.eh_proj.weight is not part of the glm4moe architecture");
    with(LAYERS).refused_with("layer count");
    with(u32::MAX).refused_with("4294967295 of 4 layers");
}

#[test]
fn other_kinds_of_model_are_refused_by_key() {
    file("gemma2")
        .with("expert_count", Value::U32(8))
        .refused("`gemma2.expert_count` asks for a mixture of 8 experts, which is not supported");
    assert!(file("llama").with("attention.causal", Value::Bool(false)).config().bidirectional);
    file("llama")
        .with("residual_scale", Value::F32(0.22))
        .refused("`llama.residual_scale` is 0.22, which is not supported");
    file("mamba").without("attention.layer_norm_rms_epsilon").refused(
        "`general.architecture` is mamba (without `mamba.attention.layer_norm_rms_epsilon`), which is not supported",
    );
    file("llama").without("attention.layer_norm_rms_epsilon").refused("`llama.attention.layer_norm_rms_epsilon` is missing from the GGUF metadata: this file cannot be run, convert the original model again");
    file("plamo").tensor("blk.0.attn_qkv.weight").refused(
        "tensor blk.0.attn_qkv.weight is not part of the plamo architecture: this variant is not supported yet",
    );
    file("llama").tensor("blk.4.attn_norm.weight").refused(
        "tensor blk.4.attn_norm.weight is not part of the llama architecture: this variant is not supported yet",
    );
}

#[test]
fn ignorable_tensors_are_skipped() {
    let model =
        file("llama").tensor("blk.0.attn_rot_embd.weight").tensor("rope_freqs.weight").open().unwrap();
    assert!(model.tensor("blk.0.attn_rot_embd.weight").is_none());
    assert!(model.tensor("rope_freqs.weight").is_some());
    assert_eq!(model.tensors().len(), 6);
}

#[test]
fn implausible_numbers_are_rejected() {
    let place = "in the GGUF metadata";
    file("llama")
        .with("attention.head_count_kv", Value::U32(3))
        .refused(&format!("head count {place}: 4 query heads are not a multiple of 3 key-value heads"));
    file("llama")
        .with("attention.head_count", Value::U32(0))
        .refused("metadata key `llama.attention.head_count`: a model without attention heads cannot be run");
    file("llama")
        .with("block_count", Value::U32(u32::MAX))
        .refused(&format!("layer count {place}: 4294967295 layers, but the file has only 5 tensors"));
    file("llama")
        .with("block_count", Value::U32(1_000_000))
        .refused(&format!("layer count {place}: 1000000 layers, but the file has only 5 tensors"));
    file("llama")
        .with("embedding_length", Value::U32(64))
        .refused(&format!("hidden size {place}: it is 64, but token_embd.weight has 32 columns"));
    file("llama")
        .with("rope.dimension_count", Value::U32(10))
        .refused(&format!("RoPE dimensions {place}: 10 is not an even number up to the head size 8"));
    file("llama")
        .with("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN))
        .refused(&format!("norm epsilon {place}: NaN is out of range"));
    file("llama")
        .with("rope.freq_base", Value::F32(f32::INFINITY))
        .refused(&format!("RoPE base {place}: inf is out of range"));
}

#[test]
fn a_vocabulary_without_weights_is_not_a_model() {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", text("llama"));
    let bytes = GgufWriter::new(Vec::new(), &metadata, vec![]).unwrap().finish().unwrap();
    let gguf = Gguf::from_region(Region::from_vec(bytes)).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
    let error = GgufModel::from_gguf(gguf).unwrap_err().to_string();
    assert_eq!(
        error,
        "this is a GGUF file without tensors, not a model that can be run. It holds a vocabulary only: take the file with the weights."
    );
}

#[test]
fn misaligned_tensors_are_rejected() {
    let mut odd = file("llama").with("x", Value::U32(0));
    odd.metadata.insert("general.alignment", Value::U32(1));
    odd.tensors.insert(0, TensorSpec::new("blk.0.attn_q.bias", DType::F16, [1]));
    let error = odd.open().unwrap_err().to_string();
    assert!(
        error.ends_with("its data does not start at a multiple of 4 bytes: write the file again")
            || error.ends_with("of 2 bytes: write the file again"),
        "{error}"
    );
}

#[test]
fn suggested_sampling_comes_from_the_general_keys() {
    let with = |changes: &[(&str, Value)]| {
        let mut file = file("llama");
        for (key, value) in changes {
            file.metadata.insert(format!("general.sampling.{key}"), value.clone());
        }
        file
    };
    assert_eq!(with(&[]).config().sampling, SuggestedSampling::default());
    let all = with(&[
        ("temp", Value::F32(0.5)),
        ("top_k", Value::I32(20)),
        ("top_p", Value::F32(0.75)),
        ("min_p", Value::F32(0.125)),
        ("penalty_repeat", Value::F32(1.25)),
        ("penalty_last_n", Value::I32(-1)),
    ]);
    let expected = SuggestedSampling {
        temperature: Some(0.5),
        top_k: Some(20),
        top_p: Some(0.75),
        min_p: Some(0.125),
        repeat_penalty: Some(1.25),
        repeat_last_n: Some(usize::MAX),
    };
    assert_eq!(all.config().sampling, expected);
    with(&[("temp", Value::F32(-1.0))])
        .refused("temperature in the GGUF metadata: the suggested value -1 is out of range");
}

#[test]
fn fused_matrices_are_split_into_rows() {
    // Heads of 8: Q has 32 rows, K and V 16 each; gate and up 64 each.
    let stacked = |rows: usize| {
        let mut file = file("phi3");
        file.tensors.push(TensorSpec::new("blk.1.attn_qkv.weight", DType::MXFP4, [rows, 32]));
        file.tensors.push(TensorSpec::new("blk.1.attn_qkv.bias", DType::F32, [rows]));
        file.tensors.push(TensorSpec::new("blk.2.ffn_up.weight", DType::Q4_0, [128, 32]));
        file
    };
    let model = stacked(64).open().unwrap();
    let find = |name: &str| model.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let place = |name: &str| (find(name).shape.clone(), find(name).offset, find(name).bytes);
    let (_, start, _) = place("blk.1.attn_q.weight");
    assert_eq!(place("blk.1.attn_q.weight"), (vec![32, 32], start, 32 * 17));
    assert_eq!(place("blk.1.attn_k.weight"), (vec![16, 32], start + 32 * 17, 16 * 17));
    assert_eq!(place("blk.1.attn_v.weight"), (vec![16, 32], start + 48 * 17, 16 * 17));
    let (_, start, _) = place("blk.1.attn_q.bias");
    assert_eq!(place("blk.1.attn_v.bias"), (vec![16], start + 48 * 4, 64));
    let (_, start, _) = place("blk.2.ffn_gate.weight");
    assert_eq!(place("blk.2.ffn_up.weight"), (vec![64, 32], start + 64 * 18, 64 * 18));
    assert!(model.tensor("blk.1.attn_qkv.weight").is_none());
    assert!(model.stored().iter().any(|tensor| tensor.name == "blk.1.attn_qkv.weight"));
    stacked(96).refused(
        "tensor blk.1.attn_qkv.weight: it has 96 rows, but attn_q, attn_k, attn_v fused in it need 64",
    );
    // With a gate beside it, `ffn_up` is not fused.
    let mut apart = file("llama");
    apart.tensors.push(TensorSpec::new("blk.2.ffn_up.weight", DType::F32, [64, 32]));
    apart.tensors.push(TensorSpec::new("blk.2.ffn_gate.weight", DType::F32, [64, 32]));
    assert_eq!(apart.open().unwrap().tensor("blk.2.ffn_up.weight").unwrap().shape, [64, 32]);
}

#[test]
fn long_rope_is_detected_by_its_factors() {
    let short = |pairs: usize| {
        let mut file = file("phi3").with("rope.scaling.attn_factor", Value::F32(1.25));
        file.tensors.push(TensorSpec::new("rope_factors_short.weight", DType::F32, [pairs]));
        file.with("rope.scaling.original_context_length", Value::U32(32))
    };
    short(4).refused("tensor rope_factors_short.weight: the long factors are missing");
    let both = |pairs: usize| {
        let mut file = short(pairs);
        file.tensors.push(TensorSpec::new("rope_factors_long.weight", DType::F32, [pairs]));
        file
    };
    // The factors are zeros, like all tensors here.
    both(4).refused("RoPE factors in the GGUF metadata: 0 is out of range");
    both(5).refused("RoPE factors in the GGUF metadata: 5 short factors for 4 pairs of dimensions");
    both(4).with("rope.scaling.type", text("yarn")).refused(
        "`phi3.rope.scaling.type` is yarn, but the file has LongRoPE factors, which is not supported",
    );
}

#[test]
fn vectors_and_scores() {
    let vectors = |number: u32| file("bert").layer_norm().with("pooling_type", Value::U32(number));
    assert_eq!(vectors(3).config().embedding.pooling, Some(Pooling::Last));
    assert_eq!(vectors(4).config().embedding.pooling, None);
    vectors(5).refused("`bert.pooling_type` is 5, which is not supported");

    let labels = || Value::Array(Array::Strings(["no", "yes"].into_iter().collect()));
    let scores = |architecture: &'static str| {
        let mut file = file(architecture).layer_norm().with("classifier.output_labels", labels());
        file.tensors.push(TensorSpec::new("cls.output.weight", DType::F32, [2, 32]));
        file
    };
    let found = scores("bert").config().embedding;
    assert_eq!((&found.labels[..], found.classifier_pooling), (&["no".into(), "yes".into()][..], None));
    // llama.cpp's default for this family.
    assert_eq!(scores("modern-bert").config().embedding.classifier_pooling, Some(Pooling::Mean));
    let first = scores("modern-bert").with("classifier.pooling_type", Value::U32(2));
    assert_eq!(first.config().embedding.classifier_pooling, Some(Pooling::First));
    scores("modern-bert")
        .with("classifier.pooling_type", Value::U32(7))
        .refused("`modern-bert.classifier.pooling_type` is 7, which is not supported");
    // Without a classifier there are no labels.
    let none = file("bert").layer_norm().with("classifier.output_labels", labels()).config();
    assert_eq!(none.embedding, EmbeddingFacts::default());
}

#[test]
fn prompts_and_lengths_of_embedding_models() {
    let with = |names: &[&str], texts: &[&str]| {
        let list = |texts: &[&str]| Value::Array(Array::Strings(texts.iter().copied().collect()));
        let mut file = file("bert").layer_norm();
        file.metadata.insert("sentence_transformers.prompt_names", list(names));
        file.metadata.insert("sentence_transformers.prompt_texts", list(texts));
        file.metadata.insert("sentence_transformers.default_prompt_name", text("query"));
        file.metadata.insert("sentence_transformers.max_seq_length", Value::U32(256));
        file
    };
    let found = with(&["query", "document"], &["query: ", ""]).config().embedding;
    let expected = [("query", "query: "), ("document", "")].map(|(name, text)| (name.into(), text.into()));
    assert_eq!(found.prompts, expected);
    assert_eq!((found.default_prompt.as_deref(), found.max_text_tokens), (Some("query"), Some(256)));
    with(&["query"], &[]).refused(
        "metadata key `sentence_transformers.prompt_names`: it has 1 entries, but \
         `sentence_transformers.prompt_texts` has 0",
    );
}

#[test]
fn a_fact_may_have_several_keys() {
    // As llama.cpp's converter of June 2026 writes it.
    let file = file("exaone").layer_norm().without("attention.layer_norm_rms_epsilon");
    assert_eq!(file.config().norm_epsilon, 1e-12);
}

#[test]
fn rope_without_dimensions_is_rejected() {
    let problem = "0 dimensions cannot be rotated: convert the original model again";
    file("llama")
        .with("rope.dimension_count", Value::U32(0))
        .refused(&format!("metadata key `llama.rope.dimension_count`: {problem}"));
}

#[test]
fn granites_without_rope_and_states() {
    assert_eq!(file("granite").config().unrotated, Vec::<bool>::new());
    let unrotated = file("granite").with("rope.scaling.finetuned", Value::Bool(false)).config().unrotated;
    assert_eq!(unrotated, [true; 4]);
    // In other families the key has another meaning.
    let other = file("qwen2").with("rope.scaling.finetuned", Value::Bool(false));
    assert_eq!(other.config().unrotated, Vec::<bool>::new());
    file("granite")
        .with("ssm.state_size", Value::U32(128))
        .refused("`granite.ssm.state_size` asks for Mamba layers, which is not supported");
}

#[test]
fn what_files_of_llama4_do_not_state_is_as_in_the_published_models() {
    let mixture = |count: u32| {
        let of = [("expert_count", count), ("expert_used_count", 1), ("expert_feed_forward_length", 24)];
        of.into_iter().fold(file("llama4"), |file, (key, number)| file.with(key, Value::U32(number)))
    };
    let scout = mixture(16).config();
    assert_eq!(scout.window, Some(Window { size: 8192, pattern: WindowPattern::Unstated }));
    assert_eq!(scout.unrotated, [false, false, false, true]);
    let growth = scout.rope.query_scaling.unwrap();
    assert_eq!((growth.rate as f32, growth.step), (0.1, 8192));
    assert_eq!(scout.experts.unwrap().shared_ffn_size, Some(24));
    assert_eq!((scout.normed_heads, mixture(128).config().normed_heads), (true, false));
    let stated = mixture(128).with("attention.use_qk_norm", Value::Bool(true));
    assert!(stated.config().normed_heads);

    let whole = mixture(16).with("attention.sliding_window", Value::U32(0)).config();
    assert_eq!((whole.window, whole.unrotated, whole.rope.query_scaling), (None, vec![], None));
    mixture(16)
        .with("interleave_moe_layer_step", Value::U32(0))
        .refused("metadata key `llama4.interleave_moe_layer_step`: 0 is not a valid interval of layers");
}
