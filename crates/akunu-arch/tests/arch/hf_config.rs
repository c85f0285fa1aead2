//! Which configuration is read from `config.json`, and what is rejected.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_arch::{
    Activation, EmbeddingFacts, GroupRank, ModelConfig, Pooling, RopeScaling, SafeTensorsModel, Scores,
    WeightProvider, Window, WindowPattern,
};
use akunu_format::{FormatError, Region};
use serde_json::{Value, json};

/// SafeTensors bytes of BF16 zeros.
fn safetensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(
            (*name).to_string(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let mut header = serde_json::to_string(&header).unwrap();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    bytes
}

const LAYERS: [(&str, &[usize]); 5] = [
    ("model.embed_tokens.weight", &[5, 32]),
    ("model.layers.0.input_layernorm.weight", &[32]),
    ("model.layers.1.input_layernorm.weight", &[32]),
    ("model.layers.2.input_layernorm.weight", &[32]),
    ("model.layers.3.input_layernorm.weight", &[32]),
];

fn open(config: &Value) -> Result<SafeTensorsModel, FormatError> {
    SafeTensorsModel::from_region(Region::from_vec(safetensors(&LAYERS)), &config.to_string())
}

/// A small model of a kind, with changed fields; `null` is kept as null.
fn with(kind: &str, changes: Value) -> Value {
    let mut config = json!({
        "model_type": kind, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn config(kind: &str, changes: Value) -> ModelConfig {
    open(&with(kind, changes)).unwrap().config().clone()
}

#[track_caller]
fn refused(kind: &str, changes: Value, expected: &str) {
    assert_eq!(open(&with(kind, changes)).unwrap_err().to_string(), expected);
}

#[test]
fn absent_fields_have_transformers_defaults() {
    let llama = config("llama", json!({}));
    assert_eq!((llama.head_dim, llama.context_length, llama.norm_epsilon), (8, 2048, 1e-6));
    assert_eq!((llama.rope.base, llama.activation), (10_000.0, Some(Activation::Silu)));
    assert_eq!(config("llama", json!({"num_key_value_heads": null})).kv_head_count, 4);
    assert_eq!(config("qwen3", json!({})).head_dim, 128);
    let gemma = config("gemma", json!({}));
    assert_eq!(
        (gemma.head_dim, gemma.activation, gemma.attention_scale),
        (256, Some(Activation::GeluTanh), None)
    );
    let gemma2 = config("gemma2", json!({}));
    assert_eq!((gemma2.attention_soft_cap, gemma2.logit_soft_cap), (Some(50.0), Some(30.0)));
    assert_eq!(gemma2.attention_scale, Some(1.0 / 16.0));
    let gemma2 = config("gemma2", json!({"attn_logit_softcapping": null, "query_pre_attn_scalar": 144}));
    assert_eq!((gemma2.attention_soft_cap, gemma2.attention_scale), (None, Some(1.0 / 12.0)));
    let gemma3 = config("gemma3_text", json!({}));
    assert_eq!((gemma3.attention_soft_cap, gemma3.logit_soft_cap), (None, None));
    assert_eq!((gemma3.rope.base, gemma3.rope.local_base), (1e6, Some(10_000.0)));
}

#[test]
fn activations() {
    let act = |kind, changes| config(kind, changes).activation.unwrap();
    assert_eq!(act("gemma", json!({"hidden_act": "gelu"})), Activation::GeluTanh);
    assert_eq!(act("gemma", json!({"hidden_act": "gelu", "hidden_activation": null})), Activation::GeluTanh);
    assert_eq!(act("llama", json!({"hidden_act": "gelu"})), Activation::GeluErf);
    assert_eq!(act("gemma2", json!({"hidden_activation": "gelu_pytorch_tanh"})), Activation::GeluTanh);
    refused("llama", json!({"hidden_act": "relu2"}), "`hidden_act` is relu2, which is not supported");
}

#[test]
fn windows() {
    let window = |kind, changes| config(kind, changes).window;
    let slides =
        |size, slides: &[bool]| Some(Window { size, pattern: WindowPattern::Layers(slides.to_vec()) });
    assert_eq!(window("llama", json!({"sliding_window": 16})), None);
    assert_eq!(window("mistral", json!({})), slides(4096, &[true; 4]));
    assert_eq!(window("mistral", json!({"sliding_window": null})), None);
    assert_eq!(window("mistral", json!({"sliding_window": 16})), slides(16, &[true; 4]));
    assert_eq!(window("qwen2", json!({"sliding_window": 16, "use_sliding_window": false})), None);
    assert_eq!(window("qwen2", json!({"sliding_window": 16, "use_sliding_window": true})), None);
    assert_eq!(
        window("qwen2", json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 3})),
        slides(16, &[false, false, false, true])
    );
    let every = |size, n| Some(Window { size, pattern: WindowPattern::FullEvery(n) });
    assert_eq!(window("gemma2", json!({"sliding_window": 16})), every(16, 2));
    assert_eq!(window("gemma3_text", json!({"sliding_window": 16})), every(16, 6));
    assert_eq!(
        window("gemma3_text", json!({"sliding_window": 16, "sliding_window_pattern": 3})),
        every(16, 3)
    );
    let types = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
    assert_eq!(
        window("gemma3_text", json!({"layer_types": types})),
        slides(4096, &[true, false, false, true])
    );
    refused(
        "qwen3",
        json!({"layer_types": ["a", "a", "a", "linear_attention"], "use_sliding_window": true}),
        "`layer_types` asks for a, which is not supported",
    );
    refused(
        "gemma2",
        json!({"layer_types": ["full_attention"]}),
        "layer_types in the config.json: it has 1 entries for 4 layers",
    );
}

#[test]
fn rope_scaling_in_the_old_and_the_new_form() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let old = config("llama", json!({"rope_theta": 5e5, "rope_scaling": llama3.clone()}));
    assert_eq!((old.rope.base, old.rope.scaling), (5e5, expected));
    let mut new = llama3;
    new["rope_theta"] = json!(5e5);
    let new = config("llama", json!({"rope_parameters": new}));
    assert_eq!((new.rope.base, new.rope.scaling), (5e5, expected));

    let linear = config("llama", json!({"rope_scaling": {"type": "linear", "factor": 2}}));
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let plain = config("llama", json!({"rope_scaling": {"rope_type": "default"}}));
    assert_eq!(plain.rope.scaling, RopeScaling::None);
}

#[test]
fn yarn() {
    let yarn = |extra: Value| {
        let mut scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        for (key, value) in extra.as_object().unwrap() {
            scaling[key] = value.clone();
        }
        config("qwen2", json!({"rope_scaling": scaling})).rope.scaling
    };
    let expected = |attention_factor| RopeScaling::Yarn {
        factor: 4.0,
        original_context: 512,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        exact_ramp: false,
    };
    assert_eq!(yarn(json!({})), expected(None));
    assert_eq!(yarn(json!({"attention_factor": 1.5})), expected(Some(1.5)));
    let by_mscale = (0.1 * 0.5 * 4f64.ln() + 1.0) / (0.1 * 4f64.ln() + 1.0);
    assert_eq!(yarn(json!({"mscale": 0.5, "mscale_all_dim": 1.0})), expected(Some(by_mscale)));
    let RopeScaling::Yarn { exact_ramp, .. } = yarn(json!({"truncate": false})) else { panic!("not YaRN") };
    assert!(exact_ramp);
}

#[test]
fn rope_parameters_per_kind_of_layer() {
    let parameters = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    });
    let gemma3 = config("gemma3_text", json!({"rope_parameters": parameters}));
    assert_eq!((gemma3.rope.base, gemma3.rope.local_base), (1e6, Some(2e4)));
    assert_eq!(gemma3.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    let same = json!({"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 1e5}});
    let qwen3 = config("qwen3", json!({"rope_parameters": same}));
    assert_eq!((qwen3.rope.base, qwen3.rope.local_base), (1e5, None));
    let odd = json!({"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}});
    refused(
        "gemma3_text",
        json!({"rope_parameters": odd}),
        "`rope_parameters.sliding_attention.rope_type` asks for separate scaling in sliding-window layers, which is not supported",
    );
    let old = config(
        "gemma3_text",
        json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4}),
    );
    assert_eq!((old.rope.base, old.rope.local_base), (1e6, Some(1e4)));
    assert_eq!(old.rope.scaling, RopeScaling::Linear { factor: 8.0 });
}

#[test]
fn multimodal_gemma_3_opens_as_its_language_model() {
    let nested = json!({"model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024}});
    let model = open(&nested).unwrap();
    let config = model.config();
    assert_eq!(
        (config.architecture.as_str(), config.head_count, config.kv_head_count),
        ("gemma3_text", 8, 4)
    );
    assert_eq!((&config.eos_ids[..], config.head_dim), (&[1, 106][..], 256));

    assert_eq!(config.left_out, None);

    let mut with_images: Vec<(&str, &[usize])> = LAYERS.to_vec();
    with_images.push(("vision_tower.vision_model.embeddings.patch_embedding.weight", &[2]));
    let region = Region::from_vec(safetensors(&with_images));
    let model = SafeTensorsModel::from_region(region, &nested.to_string()).unwrap();
    assert_eq!(model.config().left_out.as_deref(), Some("image input"));
    assert_eq!(model.tensors().len(), LAYERS.len());
}

#[test]
fn extended_and_trained_context_lengths() {
    let cohere = json!({"max_position_embeddings": 8192, "model_max_length": 131_072});
    assert_eq!(config("cohere", cohere).context_length, 131_072);
    assert_eq!(config("cohere", json!({"max_position_embeddings": 8192})).context_length, 8192);
}

#[test]
fn a_classifier_has_labels_and_a_pooling() {
    let tensors: [(&str, &[usize]); 4] = [
        ("embeddings.tok_embeddings.weight", &[5, 32]),
        ("layers.0.mlp_norm.weight", &[32]),
        ("head.dense.weight", &[32, 32]),
        ("classifier.weight", &[2, 32]),
    ];
    let open = |tensors: &[(&str, &[usize])], changes: Value| {
        let mut config = with("modernbert", changes);
        config["num_hidden_layers"] = json!(1);
        SafeTensorsModel::from_region(Region::from_vec(safetensors(tensors)), &config.to_string())
    };
    let labels = json!({"id2label": {"1": "yes", "0": "no"}});
    let model = open(&tensors, labels.clone()).unwrap();
    let facts = &model.config().embedding;
    assert_eq!(
        (&facts.labels[..], facts.classifier_pooling),
        (&["no".into(), "yes".into()][..], Some(Pooling::First))
    );
    let mean = open(&tensors, json!({"classifier_pooling": "mean", "id2label": {"0": "one"}})).unwrap();
    assert_eq!(mean.config().embedding.classifier_pooling, Some(Pooling::Mean));
    assert!(mean.config().embedding.labels.is_empty(), "one label for two scores");
    let error = open(&tensors, json!({"classifier_pooling": "max"})).unwrap_err().to_string();
    assert_eq!(error, "`classifier_pooling` is max, which is not supported");
    // A leftover of training is not a classifier.
    let without = open(&tensors[..3], labels).unwrap();
    assert_eq!(without.config().embedding, EmbeddingFacts::default());
    assert!(without.tensor("cls.weight").is_none());
}

#[test]
fn unsupported_settings_are_rejected_by_key() {
    refused(
        "llama",
        json!({"num_local_experts": 8}),
        "`num_local_experts` asks for a mixture of 8 experts, which is not supported",
    );
    refused(
        "llama",
        json!({"compression_config": {"quant_method": "compressed-tensors"}}),
        "`compression_config` shows that this is a quantised checkpoint (take the original, or a GGUF file), which is not supported",
    );
    refused(
        "llama",
        json!({"rope_scaling": {"type": "proportional", "factor": 2.0}}),
        "`rope_scaling.type` is proportional, which is not supported",
    );
    refused(
        "llama",
        json!({"rope_scaling": {"rope_type": "proportional"}}),
        "`rope_scaling.rope_type` is proportional, which is not supported",
    );
    refused(
        "llama",
        json!({"rope_scaling": {"rope_type": "linear"}}),
        "`rope_scaling.factor` is missing from the config.json: take the config.json that was published with the weights",
    );
    refused(
        "gemma3_text",
        json!({"use_bidirectional_attention": "vision"}),
        "`use_bidirectional_attention` asks for attention in both directions to some tokens, which is not supported",
    );
    refused("t5", json!({}), &{
        let known: Vec<&str> = akunu_arch::Card::kinds().map(|(_, kind)| kind.model_type).collect();
        format!("`model_type` is t5 (and not one of {}), which is not supported", known.join(", "))
    });
    refused(
        "llama",
        json!({"hidden_size": "big"}),
        "key `hidden_size` should be a whole number, but is a string",
    );
    refused(
        "llama",
        json!({"num_hidden_layers": 1u64 << 40}),
        "num_hidden_layers in the config.json: 1099511627776 layers, but the file has only 5 tensors",
    );
    refused(
        "llama",
        json!({"num_hidden_layers": 3}),
        "tensor blk.3.attn_norm.weight is not part of the llama architecture: this variant is not supported yet",
    );
}

#[test]
fn routers_in_configurations() {
    let glm = |changes: Value| config("glm4_moe", changes).experts.unwrap();
    let plain = glm(json!({}));
    assert_eq!((plain.count, plain.used, plain.groups, plain.scale), (128, 8, [1, 1], 1.0));
    assert_eq!((plain.ffn_size, plain.shared_ffn_size, plain.normalised), (1408, Some(1408), true));
    assert_eq!((plain.router.scores, plain.router.rank), (Scores::Sigmoid, GroupRank::TwoBest));
    let grouped =
        glm(json!({"n_group": 8, "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 3}));
    assert_eq!((grouped.groups, grouped.scale, grouped.shared_ffn_size), ([8, 2], 2.5, Some(4224)));
    assert_eq!(glm(json!({"n_shared_experts": 0})).shared_ffn_size, None);
    assert_eq!(config("minimax_m2", json!({"head_dim": 32, "rotary_dim": 12})).rope.dims, 12);
    let hunyuan = config(
        "hunyuan_v1_moe",
        json!({"moe_topk": [2, 2, 2, 2], "num_experts": 6, "head_dim": 4,
        "rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 1.0}}),
    );
    assert_eq!(hunyuan.rope.base, 10_000.0 * 100.0 * 100.0);
    let experts = hunyuan.experts.unwrap();
    assert_eq!((experts.used, experts.ffn_size, experts.shared_ffn_size), (2, 64, Some(64)));
    let mixed = config("phimoe", json!({"router_jitter_noise": 0.125})).experts.unwrap();
    assert_eq!((mixed.router.scores, mixed.router.tolerance), (Scores::SparseMixer, 0.25));
}

#[test]
fn contradictory_routers_are_refused() {
    let glm = |changes: Value, expected: &str| {
        refused("glm4_moe", changes, &format!("expert count in the config.json: {expected}"));
    };
    for changes in [json!({"norm_topk_prob": true}), json!({"n_group": 2, "topk_group": 1})] {
        refused(
            "phimoe",
            changes,
            "expert count in the config.json: a sparse mixer has neither normalised shares nor groups",
        );
    }
    glm(json!({"n_group": 0}), "128 experts in 0 groups, of which 1 are used");
    glm(json!({"n_group": 3, "topk_group": 1}), "128 experts in 3 groups, of which 1 are used");
    glm(json!({"n_group": 4, "topk_group": 5}), "128 experts in 4 groups, of which 5 are used");
    glm(json!({"n_group": 4, "topk_group": 0}), "128 experts in 4 groups, of which 0 are used");
    glm(
        json!({"n_group": 32, "topk_group": 1}),
        "each token is routed to 8 experts of 1 groups, which have 4 each",
    );
    glm(
        json!({"n_group": 128, "topk_group": 9}),
        "groups of 1 expert cannot be ranked by their two best ones",
    );
    refused(
        "glm4_moe",
        json!({"routed_scaling_factor": -1.0}),
        "scale of experts' shares in the config.json: -1 is out of range",
    );
    refused(
        "glm4_moe",
        json!({"num_experts_per_tok": [8, 8, 4, 8]}),
        "`num_experts_per_tok` differs from layer to layer, which is not supported",
    );
    refused(
        "minimax_m2",
        json!({"scoring_func": "softmax"}),
        "`scoring_func` is softmax (and not sigmoid), which is not supported",
    );
    let longrope = json!({"type": "longrope", "short_mscale": 1.1, "long_mscale": 1.2, "short_factor": [], "long_factor": []});
    refused(
        "phimoe",
        json!({"rope_scaling": longrope}),
        "`rope_scaling.long_mscale` differs from `short_mscale`, which is not supported",
    );
    refused(
        "phimoe",
        json!({"router_jitter_noise": -0.5}),
        "expert count in the config.json: the router's tolerance -1 is out of range",
    );
}

#[test]
fn models_with_layers_of_other_types_are_refused_by_these() {
    let kind = "granitemoehybrid";
    for experts in [0, 5] {
        let with_types = |key: &str, types: [&str; 4]| json!({key: types, "num_local_experts": experts, "num_experts_per_tok": 2});
        let mixed = |name| with_types("layer_types", ["attention", name, "attention", name]);
        refused(kind, mixed("rwkv"), "`layer_types` asks for rwkv layers, which is not supported");
        refused(kind, mixed("conv"), "`layer_types` asks for conv layers, which is not supported");
        for types in [json!([]), json!(["attention", "attention", "attention", "attention", "attention"])] {
            let fields =
                json!({"layer_types": types, "num_local_experts": experts, "num_experts_per_tok": 2});
            let count = types.as_array().unwrap().len();
            let error = format!("layer_types in the config.json: it has {count} entries for 4 layers");
            refused(kind, fields, &error);
        }
        // The name of the field in files of the first models.
        refused(
            kind,
            with_types("layers_block_type", ["rwkv"; 4]),
            "`layer_types` asks for rwkv layers, which is not supported",
        );
        let error = open(&with(kind, json!({"num_local_experts": experts}))).unwrap_err().to_string();
        assert!(error.starts_with("`layer_types` is missing"), "{error}");

        let plain = config(kind, mixed("full_attention"));
        assert_eq!(plain.architecture, if experts == 0 { "granite" } else { "granitemoe" });
        assert_eq!((plain.experts.is_some(), plain.unrotated), (experts > 0, vec![true; 4]));
        let mut rotated = mixed("attention");
        rotated["position_embedding_type"] = json!("rope");
        assert_eq!(config(kind, rotated).unrotated, Vec::<bool>::new());
    }
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    let with = |further: usize| {
        open(&with("glm4_moe", json!({"num_hidden_layers": 3, "num_nextn_predict_layers": further})))
    };
    let model = with(1).unwrap();
    assert_eq!(model.config().layer_count, 3);
    assert_eq!(model.config().left_out.as_deref(), Some("layers that predict further tokens"));
    assert!(
        model.tensor("blk.2.attn_norm.weight").is_some() && model.tensor("blk.3.attn_norm.weight").is_none()
    );
    let error = with(0).unwrap_err().to_string();
    assert!(error.contains("blk.3.attn_norm.weight is not part of the"), "{error}");
    assert_eq!(with(usize::MAX / 4096).unwrap().config().layer_count, 3);
}

#[test]
fn unknown_tensors_and_types_are_refused_by_name() {
    let open = |bytes: Vec<u8>| {
        let config = with("llama", json!({"num_hidden_layers": 1})).to_string();
        SafeTensorsModel::from_region(Region::from_vec(bytes), &config).unwrap_err().to_string()
    };
    let embedding: (&str, &[usize]) = ("model.embed_tokens.weight", &[5, 32]);
    let error = open(safetensors(&[embedding, ("model.layers.0.mlp.router.weight", &[2])]));
    assert_eq!(
        error,
        "tensor model.layers.0.mlp.router.weight is not part of the llama architecture: this variant is not supported yet"
    );
    let mut bytes = safetensors(&[embedding]);
    let at = bytes.windows(4).position(|window| window == b"BF16").unwrap();
    bytes[at..at + 4].copy_from_slice(b"I16\"");
    bytes[at + 4] = b' ';
    assert_eq!(
        open(bytes),
        "tensor model.embed_tokens.weight is I16, which is not supported: take a file in F32, F16 or BF16"
    );
    let error = open(safetensors(&[("model.norm.weight", &[32])]));
    assert!(error.starts_with("tensor token_embd.weight is missing"), "{error}");
}

#[test]
fn long_rope_has_two_lists_of_factors() {
    let phi3 = |changes: Value| {
        let mut all = json!({"max_position_embeddings": 64, "original_max_position_embeddings": 16,
            "rope_scaling": {"type": "su", "short_factor": [1, 1.5, 2, 2.5], "long_factor": [2, 4, 6, 8]}});
        for (key, value) in changes.as_object().unwrap() {
            all[key] = value.clone();
        }
        all
    };
    let plain = config("phi3", phi3(json!({})));
    let factors = plain.rope.factors.unwrap();
    assert_eq!((factors.short, factors.long), (vec![1.0, 1.5, 2.0, 2.5], vec![2.0, 4.0, 6.0, 8.0]));
    let attention_factor = (1.0_f64 + 4.0_f64.ln() / 16.0_f64.ln()).sqrt();
    assert_eq!(plain.rope.scaling, RopeScaling::LongRope { original_context: 16, attention_factor });
    assert_eq!((plain.norm_epsilon, plain.window), (1e-5, None));
    refused(
        "phi3",
        phi3(json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1]}})),
        "`rope_scaling.long_factor` is missing from the config.json: take the config.json that was published with the weights",
    );
    refused(
        "phi3",
        phi3(json!({"partial_rotary_factor": 0.5})),
        "RoPE factors in the config.json: 4 short factors for 2 pairs of dimensions",
    );
}

#[test]
fn rope_without_dimensions_is_rejected() {
    let problem = "0.1 of heads of 8 are 0 dimensions, which cannot be rotated";
    refused(
        "phi3",
        json!({"partial_rotary_factor": 0.1}),
        &format!("partial_rotary_factor in the config.json: {problem}"),
    );
}

#[test]
fn a_long_list_of_end_tokens_takes_linear_time() {
    let ids: Vec<u32> = (0..400_000).chain(0..400_000).collect();
    let began = std::time::Instant::now();
    let found = config("llama", json!({"eos_token_id": ids}));
    // Comparing each with all others takes more than a minute.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(found.eos_ids, (0..400_000).collect::<Vec<u32>>());
}

#[test]
fn chunks_rope_and_growth_of_queries_follow_one_another() {
    let chunks = |slides: &[bool]| Some(Window { size: 16, pattern: WindowPattern::Layers(slides.to_vec()) });
    let llama4 = |changes: Value| {
        let mut all = json!({"attention_chunk_size": 16, "intermediate_size_mlp": 64, "floor_scale": 32});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        with("llama4_text", all)
    };
    let config = |changes| open(&llama4(changes)).unwrap().config().clone();
    let plain = config(json!({}));
    assert_eq!(plain.window, chunks(&[true, true, true, false]));
    assert_eq!(plain.unrotated, [false, false, false, true]);
    let growth = plain.rope.query_scaling.unwrap();
    assert_eq!((growth.rate, growth.step, plain.normed_heads), (0.1, 32, true));
    let experts = plain.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.ffn_size, plain.ffn_size), (16, 1, 64, 64));
    assert_eq!((experts.shared_ffn_size, experts.router.weighs_inputs), (Some(64), true));

    assert_eq!(config(json!({"no_rope_layers": [1, 0, 1, 0]})).window, chunks(&[true, false, true, false]));
    let types = ["full_attention", "chunked_attention", "full_attention", "full_attention"];
    assert_eq!(config(json!({"layer_types": types})).window, chunks(&[false, true, false, false]));
    assert_eq!(config(json!({"attention_chunk_size": null})).window, None);
    for off in [json!(false), json!(0)] {
        assert_eq!(config(json!({"attn_temperature_tuning": off})).rope.query_scaling, None);
    }
    for on in [json!(true), json!(4), json!(null)] {
        assert!(config(json!({"attn_temperature_tuning": on})).rope.query_scaling.is_some());
    }
    assert!(!config(json!({"use_qk_norm": false})).normed_heads);
    assert_eq!(config(json!({"num_local_experts": 0})).experts, None);

    let refused = |changes, expected: &str| {
        assert_eq!(open(&llama4(changes)).unwrap_err().to_string(), expected);
    };
    refused(
        json!({"attention_chunk_size": 0}),
        "attention_chunk_size in the config.json: a window must have at least 1 position",
    );
    refused(
        json!({"interleave_moe_layer_step": 0}),
        "interleave_moe_layer_step in the config.json: 0 is not a valid interval of layers",
    );
    refused(
        json!({"num_experts_per_tok": 2}),
        "expert count in the config.json: each token is routed to 2 experts, whose inputs are multiplied by shares; \
         only 1 is supported",
    );
    refused(json!({"floor_scale": 0}), "query growth in the config.json: 0.1 every 0 positions");
    refused(
        json!({"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]}),
        "`layer_types` asks for sliding_attention, which is not supported",
    );
    refused(
        json!({"no_rope_layers": [1]}),
        "no_rope_layers in the config.json: it has 1 entries for 4 layers",
    );
}

#[test]
fn the_ramp_of_llama3_may_be_a_step() {
    let rope = |low: f64, high: f64| {
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": low,
               "high_freq_factor": high, "original_max_position_embeddings": 8192}})
    };
    let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } =
        config("llama", rope(1.0, 1.0)).rope.scaling
    else {
        panic!("it is not Llama 3's");
    };
    assert_eq!((low_freq_factor, high_freq_factor), (1.0, 1.0));
    refused("llama", rope(4.0, 1.0), "RoPE high frequency factor in the config.json: 1 is out of range");
}
