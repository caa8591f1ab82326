//! Models that transformers has saved: their logits, what is saved again, and folders that cannot be used.

use super::*;
use kernfusion::HostTensor;
use kernfusion::compile::compile;
use kernfusion::models::ModelConfig;
use kernfusion::tensor_file;
use kernfusion::trace::Trace;
use kernfusion_ir::DType;

/// The largest distance of logits in `f32` from those that transformers computed.
const TOLERANCE: f32 = 1e-4;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hugging_face").join(name)
}

/// The logits of a model on the ids of a fixture.
fn logits(model: &Published, given: &BTreeMap<String, HostTensor>) -> Vec<f32> {
    let trace = Trace::new();
    let inputs = ["ids", "target"].into_iter().filter_map(|name| Some((name, given.get(name)?)));
    let inputs: Vec<_> = inputs.collect();
    let declared = |(name, tensor): &(&str, &HostTensor)| trace.input(name, tensor.shape(), DType::I32);
    let x: Vec<_> = inputs.iter().map(declared).collect();
    let logits = match model.config() {
        ModelConfig::Gpt(config) => kernfusion::models::Gpt::new(&trace, config).unwrap().forward(&x[0]),
        ModelConfig::Bert(config) => {
            kernfusion::models::Bert::new(&trace, config).unwrap().forward(&x[0], None, None)
        }
        ModelConfig::EncoderDecoder(config) => {
            kernfusion::models::EncoderDecoder::new(&trace, config).unwrap().forward(&x[0], None, &x[1])
        }
        ModelConfig::Recurrent(_) => panic!("not a published model"),
    };
    let program = trace.finish(&[("logits", &logits)]).unwrap();
    let target = Target::cpu().threads(2);
    let states = model.states(&program, &target).unwrap();
    let outputs = compile(&program.graph, &states, &target).unwrap().run(&inputs).unwrap();
    outputs.get("logits").unwrap().as_f32().unwrap().to_vec()
}

fn farthest(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The distance of a fixture's logits from those of the same model in another folder.
fn distance(name: &str, model: &Published) -> f32 {
    let given = tensor_file::read(&fixture(name).join("expected.safetensors")).unwrap();
    farthest(&logits(model, &given), given["logits"].as_f32().unwrap())
}

const DECODERS: [&str; 14] = [
    "gpt2",
    "llama",
    "llama3",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "olmo2",
    "granite",
    "smollm3",
    "phi3",
];

const OTHERS: [&str; 3] = ["bert", "t5", "t5_gated"];

fn all() -> impl Iterator<Item = &'static str> {
    DECODERS.into_iter().chain(OTHERS)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in all() {
        let model = Published::open(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.notes(), [""; 0], "{name}");
        let distance = distance(name, &model);
        println!("{name}: {distance:e}");
        assert!(distance < TOLERANCE, "{name}: {distance}");
    }
}

/// A checkpoint of a fixture, as `import` writes it.
fn imported(name: &str) -> (tempfile::TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    Published::open(&fixture(name)).unwrap().import(directory.path()).unwrap();
    let checkpoint = Checkpoint::load(directory.path()).unwrap();
    (directory, checkpoint)
}

/// All numbers of a model, rounded to a number type.
fn rounded(model: &Published, dtype: DType) -> Vec<(&str, Vec<f64>)> {
    let tensor = |parameter| HostTensor::new([model.numbers(parameter).len()], model.numbers(parameter));
    let each = |(name, parameter)| (name, tensor(parameter).to_dtype(dtype).to_f64());
    model.parameters.iter().map(|(name, parameter)| each((name.as_str(), parameter))).collect()
}

#[test]
fn what_is_saved_is_what_was_loaded() {
    let directory = tempfile::tempdir().unwrap();
    for name in all() {
        let (_kept, checkpoint) = imported(name);
        let out = directory.path().join("deep").join(name);
        let saved = export(checkpoint.clone(), &out, Storage::F32, Some(5_000), false).unwrap();
        assert!(saved.files.len() > 2 && saved.notes.is_empty(), "{name}: {saved:?}");
        let (first, again) = (Published::open(&fixture(name)).unwrap(), Published::open(&out).unwrap());
        assert_eq!((first.config(), again.notes()), (again.config(), &[][..]), "{name}");
        assert_eq!(
            (&first.tokenizer, &first.special.ends),
            (&again.tokenizer, &again.special.ends),
            "{name}"
        );
        assert_eq!(rounded(&first, DType::F32), rounded(&again, DType::F32), "{name}");
        for storage in [Storage::Bf16, Storage::F16] {
            let out = directory.path().join(format!("{name}-{}", storage.torch()));
            let saved = export(checkpoint.clone(), &out, storage, None, false).unwrap();
            assert_eq!(saved.files, [files::SINGLE]);
            // Both have the same permissions.
            let permissions = |file| std::fs::metadata(out.join(file)).unwrap().permissions();
            assert_eq!(permissions(files::SINGLE), permissions("config.json"));
            let again = Published::open(&out).unwrap();
            assert_eq!(rounded(&first, storage.dtype()), rounded(&again, DType::F32), "{name} {storage:?}");
        }
    }
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.retain(|name| name.to_str().unwrap().starts_with('.'));
    assert!(names.is_empty(), "{names:?}");
}

/// GPT-2 has biases of queries, keys and values: a model without them has zeros there.
#[test]
fn biases_that_a_model_lacks_are_zeros() {
    let (_kept, mut checkpoint) = imported("gpt2");
    checkpoint.meta.config["qkv_bias"] = json!(false);
    checkpoint.tensors.retain(|name, _| !name.ends_with("attn.qkv.bias"));
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    assert_eq!(export(checkpoint, &out, Storage::F32, None, false).unwrap().model_type, "gpt2");
    let again = Published::open(&out).unwrap();
    let ModelConfig::Gpt(config) = again.config() else { panic!("a decoder") };
    assert!(config.qkv_bias);
    let all = rounded(&again, DType::F32);
    let (_, biases) = all.iter().find(|(name, _)| *name == "blocks.1.attn.qkv.bias").unwrap();
    assert_eq!(biases, &[0.0; 48]);
}

/// A copy of a fixture with one file changed.
fn changed(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let path = directory.path().join(file);
    std::fs::write(&path, change(std::fs::read(&path).unwrap_or_default())).unwrap();
    directory
}

/// The error of a fixture with one file changed.
fn refused(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
    let directory = changed(name, file, change);
    let error = Published::open(directory.path()).map(|_| ()).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn fields(bytes: &[u8], change: &[(&str, serde_json::Value)]) -> Vec<u8> {
    let mut fields: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    change.iter().for_each(|(name, value)| fields[name] = value.clone());
    fields.to_string().into_bytes()
}

#[test]
fn fields_that_change_the_mathematics_are_honoured_or_refused() {
    let config = |name: &str, change: &[(&str, serde_json::Value)]| {
        refused(name, CONFIG, |bytes| fields(&bytes, change))
    };
    let cases = [
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true), "but only false can be computed here"),
        ("gpt2", "activation_function", json!("tanh"), "activation_function tanh is not known"),
        ("gpt2", "n_head", json!(3), "width 16 is not a multiple of heads 3"),
        ("gpt2", "n_embd", json!("wide"), "field n_embd: invalid type"),
        ("gpt2", "model_type", json!("rwkv"), "model_type is \"rwkv\", but only gpt2, llama, mistral"),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "rope_type yarn is not known",
        ),
        ("llama", "rope_scaling", json!({"type": "linear"}), "rope_type linear without a factor"),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "llama3", "factor": 4.0}),
            "without a low_freq_factor",
        ),
        (
            "llama",
            "rope_scaling",
            json!({"type": "linear", "factor": -2.0}),
            "the factor -2 of rope's scaling",
        ),
        ("llama", "partial_rotary_factor", json!(0.5), "field partial_rotary_factor is 0.5"),
        ("llama", "attention_bias", json!(true), "attention_bias and mlp_bias differ"),
        ("llama", "hidden_act", json!("gelu"), "hidden_act gelu is not known"),
        ("qwen2", "use_sliding_window", json!(true), "field use_sliding_window is true"),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            "layer_types has linear_attention",
        ),
        ("qwen3", "attention_bias", json!(true), "field attention_bias is true"),
        ("qwen3_moe", "norm_topk_prob", json!(false), "field norm_topk_prob is false"),
        ("qwen3_moe", "mlp_only_layers", json!([0]), "mlp_only_layers names blocks without experts"),
        ("gemma", "hidden_act", json!("relu"), "hidden_act relu is not known"),
        ("gemma2", "attn_logit_softcapping", json!(-1.0), "attention_softcap -1 is not a number above 0"),
        (
            "gemma3",
            "layer_types",
            json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
            "layer_types has full_attention at 2, where sliding_attention is expected",
        ),
        ("granite", "residual_multiplier", json!(0.0), "scales.branch 0 is not a number above 0"),
        (
            "smollm3",
            "no_rope_layers",
            json!([1, 0, 1, 1]),
            "no_rope_layers does not repeat itself: see place 3",
        ),
        (
            "phi3",
            "rope_parameters",
            json!({"rope_type": "longrope", "rope_theta": 1e4}),
            "rope_type longrope is not known",
        ),
        ("bert", "is_decoder", json!(true), "field is_decoder is true"),
        ("bert", "position_embedding_type", json!("relative_key"), "is relative_key, but only absolute"),
        ("t5", "feed_forward_proj", json!("gated-relu"), "feed_forward_proj gated-relu is not known"),
    ];
    for (name, field, value, expected) in cases {
        // Newer files name rotary positions in one field, older ones in two.
        let older = (field == "rope_scaling").then_some(("rope_parameters", serde_json::Value::Null));
        let change: Vec<_> = [Some((field, value)), older].into_iter().flatten().collect();
        let error = config(name, &change);
        assert!(error.contains("config.json: ") && error.contains(expected), "{name} {field}: {error}");
    }
    let open = |name: &str, change: &[(&str, serde_json::Value)]| {
        let directory = changed(name, CONFIG, |bytes| fields(&bytes, change));
        let model = Published::open(directory.path()).unwrap();
        (model.config().clone(), model.notes().to_vec())
    };
    let old = [("rope_parameters", json!(null)), ("rope_theta", json!(77.0)), ("new_idea", json!(2))];
    let (llama, notes) = open("llama", &old);
    let ModelConfig::Gpt(llama) = llama else { panic!("a decoder") };
    let halves = kernfusion::nn::Rope { pairing: kernfusion::nn::Pairing::Halves, ..Default::default() };
    let rope = kernfusion::nn::Rope { base: 77.0, ..halves };
    assert_eq!(llama.positions, kernfusion::models::Positions::Rope(rope));
    assert_eq!(notes, ["config.json has fields that are not known here: new_idea"]);
    let scaled = json!({"type": "linear", "factor": 2.0});
    let linear = [("rope_parameters", json!(null)), ("rope_theta", json!(77.0)), ("rope_scaling", scaled)];
    let ModelConfig::Gpt(linear) = open("llama", &linear).0 else { panic!("a decoder") };
    let scaling = Some(kernfusion::nn::RopeScaling::Linear { factor: 2.0 });
    assert_eq!(
        linear.positions,
        kernfusion::models::Positions::Rope(kernfusion::nn::Rope { scaling, ..rope })
    );
    let window = |change: &[(&str, serde_json::Value)]| match open("llama", change).0 {
        ModelConfig::Gpt(config) => config.window,
        _ => panic!("a decoder"),
    };
    let mistral = ("model_type", json!("mistral"));
    assert_eq!(window(std::slice::from_ref(&mistral)), Some(4096));
    assert_eq!(window(&[mistral.clone(), ("sliding_window", json!(7))]), Some(7));
    assert_eq!(window(&[mistral, ("sliding_window", json!(null))]), None);
    // As files of Gemma 3 were written at first.
    let older = [
        ("layer_types", json!(null)),
        ("sliding_window_pattern", json!(2)),
        ("rope_parameters", json!(null)),
        ("rope_theta", json!(77.0)),
        ("rope_local_base_freq", json!(7.0)),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
    ];
    let (gemma, notes) = open("gemma3", &older);
    let ModelConfig::Gpt(gemma) = gemma else { panic!("a decoder") };
    let local = kernfusion::nn::Rope { base: 7.0, ..rope };
    let global = kernfusion::nn::Rope { scaling, ..rope };
    assert_eq!(gemma.positions, kernfusion::models::Positions::Rope(local));
    assert_eq!(gemma.global, Some(kernfusion::models::GlobalBlocks { every: 2, rope: Some(global) }));
    assert_eq!(notes, [""; 0]);
}

#[test]
fn folders_that_cannot_be_used_are_refused_in_one_line() {
    let weights = files::SINGLE;
    let cut = refused("gpt2", weights, |bytes| bytes[..30_000].to_vec());
    assert!(cut.ends_with("model.safetensors is truncated: it has 30000 bytes of 33984"), "{cut}");
    let header = refused("gpt2", weights, |bytes| bytes[..100].to_vec());
    assert!(header.contains("is truncated: it has 100 bytes of "), "{header}");
    let text = refused("gpt2", weights, |_| b"version https://git-lfs".to_vec());
    assert!(text.contains("is not a safetensors file"), "{text}");
    let shorter =
        refused("gpt2", CONFIG, |bytes| fields(&bytes, &[("n_layer", json!(1)), ("n_inner", json!(41))]));
    for part in [
        "does not fit its config.json: not of this model transformer.h.1.attn.c_attn.bias [48], ",
        "transformer.h.1.mlp.c_proj.weight [40, 16]",
        "transformer.h.0.mlp.c_fc.weight has shape [16, 40], not [16, 41]",
        "transformer.h.0.mlp.c_fc.bias has shape [40], not [41]",
    ] {
        assert!(shorter.contains(part), "{part} in {shorter}");
    }
    let longer = refused("gpt2", CONFIG, |bytes| fields(&bytes, &[("n_layer", json!(3))]));
    for part in ["missing transformer.h.2.attn.c_attn.bias [48], ", "transformer.h.2.ln_1.weight [16]"] {
        assert!(longer.contains(part), "{part} in {longer}");
    }
    let experts = refused("mixtral", CONFIG, |bytes| fields(&bytes, &[("num_local_experts", json!(65536))]));
    assert!(
        experts.contains("config.json: it describes 65536 experts, but the folder has only "),
        "{experts}"
    );
    let smaller = refused("llama", CONFIG, |bytes| fields(&bytes, &[("vocab_size", json!(90))]));
    assert!(
        smaller.contains("tokenizer.json: its last token \"▁\" has the id 97, but vocab_size is 90"),
        "{smaller}"
    );
    let broken = refused("llama", TOKENIZER, |bytes| bytes[..200].to_vec());
    assert!(broken.contains("tokenizer.json"), "{broken}");
    let encoded = refused("llama", CONFIG, |_| b"{\"model_type\": \"ll\xff\"}".to_vec());
    assert!(encoded.contains("config.json") && encoded.contains("UTF-8"), "{encoded}");
    let index = |change: fn(&mut serde_json::Value)| {
        refused("mixtral", files::INDEX, |bytes| {
            let mut index = serde_json::from_slice(&bytes).unwrap();
            change(&mut index);
            index.to_string().into_bytes()
        })
    };
    let absent = index(|index| index["weight_map"]["lm_head.weight"] = json!("model-3.safetensors"));
    assert!(absent.contains("missing files: model-3.safetensors"), "{absent}");
    let outside = index(|index| index["weight_map"]["lm_head.weight"] = json!("../model.safetensors"));
    assert!(outside.contains("\"../model.safetensors\" is not the name of a file"), "{outside}");
    let elsewhere =
        index(|index| index["weight_map"]["lm_head.weight"] = json!("model-00002-of-00002.safetensors"));
    assert!(
        elsewhere.contains("lm_head.weight is in model-00001-of-00002.safetensors, where"),
        "{elsewhere}"
    );
    let empty = tempfile::tempdir().unwrap();
    let error = Published::open(empty.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains("config.json"), "{error}");
}

#[test]
fn tensors_are_known_by_their_other_names() {
    let rewritten = |name: &str, change: &dyn Fn(&mut BTreeMap<String, HostTensor>)| {
        let directory = changed(name, CONFIG, |bytes| bytes);
        let path = directory.path().join(files::SINGLE);
        let mut tensors = tensor_file::read(&path).unwrap();
        change(&mut tensors);
        tensor_file::write(&path, &tensors).unwrap();
        Published::open(directory.path()).map(|model| {
            let ModelConfig::Gpt(config) = model.config() else { return distance(name, &model) };
            // What has an output layer of its own gives other logits.
            if config.tied { distance(name, &model) } else { f32::INFINITY }
        })
    };
    let renamed = |tensors: &mut BTreeMap<String, HostTensor>, from: &str, to: &str| {
        let old = std::mem::take(tensors);
        tensors.extend(old.into_iter().map(|(name, tensor)| (name.replace(from, to), tensor)));
    };
    // As the model without its output layer is saved, with the buffers of old versions.
    let base = rewritten("gpt2", &|tensors| {
        renamed(tensors, "transformer.", "");
        tensors.insert("h.0.attn.bias".into(), HostTensor::new([1, 1, 2, 2], vec![true; 4]));
    });
    assert!(base.unwrap() < TOLERANCE);
    // A copy of what is shared may be there, alone or beside.
    let head = |tensors: &mut BTreeMap<String, HostTensor>, factor: f64| {
        let shared = &tensors["transformer.wte.weight"];
        let values: Vec<_> = shared.to_f64().iter().map(|x| factor * x).collect();
        let copy = HostTensor::from_f64(&shared.ty(), &values);
        tensors.insert("lm_head.weight".into(), copy);
    };
    assert!(rewritten("gpt2", &|tensors| head(tensors, 1.0)).unwrap() < TOLERANCE);
    let alone = rewritten("gpt2", &|tensors| renamed(tensors, "transformer.wte", "lm_head"));
    assert!(alone.unwrap() < TOLERANCE);
    // But an output layer of its own stands for nothing else.
    let headless = rewritten("llama", &|tensors| drop(tensors.remove("model.embed_tokens.weight")));
    assert!(headless.unwrap_err().to_string().contains("missing model.embed_tokens.weight [98, 16]"));
    // One that differs is an output layer of its own.
    assert_eq!(rewritten("gpt2", &|tensors| head(tensors, 2.0)).unwrap(), f32::INFINITY);
    let old = rewritten("bert", &|tensors| {
        renamed(tensors, "LayerNorm.weight", "LayerNorm.gamma");
        renamed(tensors, "LayerNorm.bias", "LayerNorm.beta");
        tensors.insert("cls.seq_relationship.bias".into(), HostTensor::new([2], vec![0.0f32; 2]));
    });
    assert!(old.unwrap() < TOLERANCE);
    let foreign = rewritten("gpt2", &|tensors| {
        tensors.insert("transformer.extra.weight".into(), HostTensor::new([2], vec![0.0f32; 2]));
        tensors.insert("transformer.ln_f.bias".into(), HostTensor::new([16], vec![1i32; 16]));
    });
    let error = foreign.unwrap_err().to_string();
    for part in [
        "not of this model transformer.extra.weight [2]",
        "transformer.ln_f.bias has numbers of I32, not F32",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn what_the_layout_cannot_express_is_not_saved() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let (_kept, checkpoint) = imported("gpt2");
    let refused = |checkpoint: &Checkpoint, storage| {
        let error = export(checkpoint.clone(), &out, storage, None, false).unwrap_err().to_string();
        assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none(), "{error}");
        error
    };
    let mut windowed = checkpoint.clone();
    windowed.meta.config["window"] = json!(4);
    let error = refused(&windowed, Storage::F32);
    assert!(
        error.contains("no gpt2, since its window is 4, not null; no llama, mistral, qwen2, qwen3, "),
        "{error}"
    );
    let mut large = checkpoint.clone();
    large.tensors.get_mut("wte.weight").unwrap().data[3] = 1e5;
    assert!(
        refused(&large, Storage::F16)
            .contains("wte.weight has the number 100000, which is too large for f16")
    );
    let mut partial = checkpoint.clone();
    partial.tensors.remove("ln_f.bias");
    assert!(refused(&partial, Storage::F32).contains("missing ln_f.bias [16]"));
    std::fs::create_dir(&out).unwrap();
    export(checkpoint.clone(), &out, Storage::F32, None, false).unwrap();
    let before = std::fs::read(out.join(files::SINGLE)).unwrap();
    let error = export(checkpoint.clone(), &out, Storage::Bf16, None, false).unwrap_err().to_string();
    assert!(error.contains("is not empty; nothing was written"), "{error}");
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    let error = export(checkpoint.clone(), &out, Storage::Bf16, None, true).unwrap_err().to_string();
    assert!(error.contains("is not replaced: it has notes.txt"), "{error}");
    assert_eq!(std::fs::read(out.join(files::SINGLE)).unwrap(), before);
    std::fs::remove_file(out.join("notes.txt")).unwrap();
    export(checkpoint, &out, Storage::Bf16, Some(5_000), true).unwrap();
    assert!(!out.join(files::SINGLE).exists() && Published::open(&out).is_ok());
}

#[test]
fn a_decoder_continues_a_text_as_it_reads_it_at_once() {
    use crate::generate::Generator;
    let target = Target::cpu().threads(2);
    for name in DECODERS {
        let model = Published::open(&fixture(name)).unwrap();
        let expected = tensor_file::read(&fixture(name).join("expected.safetensors")).unwrap();
        let (ids, logits) = (expected["ids"].to_f64(), expected["logits"].as_f32().unwrap());
        let text: Vec<i32> = ids[..64].iter().map(|&id| id as i32).collect();
        let mut generator = Generator::from_published(&model, &target).unwrap();
        let vocabulary = model.config().vocabulary();
        // A prompt, and then one token after another.
        for length in [40, 41, 42, 60, 64] {
            let next = generator.next_logits(&text[..length]).unwrap();
            let row = &logits[(length - 1) * vocabulary..][..next.len()];
            assert!(next.len() + 1 >= vocabulary && farthest(&next, row) < TOLERANCE, "{name} {length}");
        }
    }
}

/// `benches/peers/hf_fixtures.py --full --out FOLDER` makes such a folder, of a GPT-2 small.
#[test]
fn logits_of_a_large_model_are_those_of_transformers() {
    let Some(folder) = std::env::var_os("KERNFUSION_PUBLISHED") else {
        println!("skipped: KERNFUSION_PUBLISHED names no folder with a model and its expected.safetensors");
        return;
    };
    let folder = PathBuf::from(folder);
    let start = std::time::Instant::now();
    let model = Published::open(&folder).unwrap();
    let opened = start.elapsed();
    let program = match model.config() {
        ModelConfig::Gpt(config) => config.forward(1, 1).unwrap(),
        _ => panic!("a decoder is expected"),
    };
    let loading = std::time::Instant::now();
    drop(model.states(&program, &Target::cpu()).unwrap());
    let loaded = loading.elapsed();
    let given = tensor_file::read(&folder.join("expected.safetensors")).unwrap();
    let distance = farthest(&logits(&model, &given), given["logits"].as_f32().unwrap());
    println!("opened in {opened:?}, loaded in {loaded:?}, logits {distance:e} apart");
    assert!(distance < TOLERANCE, "{distance}");
}
