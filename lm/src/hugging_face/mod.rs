//! Models in the layout of Hugging Face: a folder with `config.json`, `model.safetensors` or shards with an index, and
//! `tokenizer.json`.
//!
//! ```text
//! config.json ──► ModelConfig ──► names and shapes of our parameters ──table──► names and shapes of theirs
//! model.safetensors ──mapped──────────────── one parameter after another ──────────────────► states, checkpoint
//! ```
//!
//! * What `config.json` says is honoured, refused, or named in [`Published::notes`]; nothing is left out of account silently.
//! * All tensors are compared with the model before the first one is read, and all that do not fit are listed.
//! * Numbers of `f32`, `bf16` and `f16` are read where they lie in the file, one parameter while another one is stored; so memory holds
//!   the model and two parameters more.
//! * One table for each architecture serves [`Published`] and [`export()`], so that what is saved is what is loaded.

mod architecture;
mod chat_template;
mod export;
mod fields;
mod files;
mod layout;
mod special;

pub use crate::error::HuggingFaceError;
pub use chat_template::{ChatTemplate, Message, Role};
pub use export::{Exported, Storage, export};
pub use special::SpecialTokens;

use crate::Result;
use crate::checkpoint::{Checkpoint, Meta};
use crate::record::parameters::misfits;
use crate::text::Tokenizer;
use architecture::Architecture;
use fields::Fields;
use files::Files;
use kernfusion::HostTensor;
use kernfusion::compile::Target;
use kernfusion::models::{Experts, ModelConfig};
use kernfusion::trace::Program;
use kernfusion_codegen::States;
use layout::Parameter;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file that says what the model is.
const CONFIG: &str = "config.json";

/// The file of the tokenizer.
const TOKENIZER: &str = "tokenizer.json";

/// A model in the layout of Hugging Face, opened but not read: its tensors stay where they are until they are asked for.
#[derive(Debug)]
pub struct Published {
    directory: PathBuf,
    config: ModelConfig,
    tokenizer: Option<Tokenizer>,
    special: SpecialTokens,
    notes: Vec<String>,
    files: Files,
    base: &'static str,
    ties: &'static [&'static [&'static str]],
    parameters: BTreeMap<String, Parameter>,
}

impl Published {
    /// Opens the model in a folder and compares all tensors with what its `config.json` describes.
    ///
    /// # Errors
    /// [`HuggingFaceError`] if a file is missing, truncated or cannot be understood, the model is one that is not known, its
    /// tensors do not fit (all are listed), or its tokenizer has tokens that the model does not know.
    pub fn open(directory: &Path) -> std::result::Result<Self, HuggingFaceError> {
        let path = directory.join(CONFIG);
        let content = |reason: String| HuggingFaceError::Content { path: path.clone(), reason };
        let mut fields = Fields::parse(&read(&path)?).map_err(content)?;
        let special = SpecialTokens::read(directory, &fields)?;
        let model_type: String = fields.needed("model_type").map_err(content)?;
        let architecture = architecture::named(&model_type).map_err(content)?;
        let mut config = (architecture.read)(&mut fields).map_err(content)?;
        // The rest of the way needs a model that can be.
        config.validate().map_err(|error| content(error.reason()))?;
        let files = Files::open(directory, architecture.rename, architecture.halves)?;
        check_experts(&config, files.names().count()).map_err(content)?;
        untie(&mut config, architecture, &files);
        let tokenizer = tokenizer(directory, &config)?;
        special.enter(&mut config, tokenizer.as_ref());
        config.validate().map_err(|error| content(error.reason()))?;
        let parameters = parameters(architecture, &config).map_err(content)?;
        let published = Published {
            directory: directory.into(),
            notes: notes(&fields),
            config,
            tokenizer,
            special,
            files,
            base: architecture.base,
            ties: architecture.ties,
            parameters,
        };
        published.check(architecture)?;
        Ok(published)
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer, if the folder has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// If the folder has none.
    pub fn needed_tokenizer(&self) -> std::result::Result<&Tokenizer, HuggingFaceError> {
        self.tokenizer
            .as_ref()
            .ok_or_else(|| HuggingFaceError::NoTokenizer { directory: self.directory.clone() })
    }

    /// The model's chat template.
    ///
    /// # Errors
    /// If the folder has none, or one that cannot be understood.
    pub fn chat_template(&self) -> std::result::Result<ChatTemplate, HuggingFaceError> {
        let found = ChatTemplate::read(&self.directory)?;
        found.ok_or_else(|| HuggingFaceError::NoChatTemplate { directory: self.directory.clone() })
    }

    /// The tokens with a meaning of their own.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// What a user should know: fields of `config.json` that are not known here.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The parameters, for a program that has all of them, each in the number type in which the program keeps it. While one is
    /// stored, the next one is read.
    ///
    /// # Errors
    /// If memory is short.
    pub fn states(&self, program: &Program, target: &Target) -> Result<States> {
        let states = target.states();
        let (read, stored) = std::sync::mpsc::sync_channel::<Vec<(String, HostTensor)>>(0);
        let pairs = program.parameters.iter().map(|one| (one, self.parameters.get(&one.name)));
        let known = pairs.filter_map(|(parameter, ours)| Some((parameter, ours?)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (parameter, ours) in known {
                    // Nobody takes them any more once storing one has failed.
                    if read.send(parameter.kept(self.numbers(ours))).is_err() {
                        break;
                    }
                }
            });
            stored.into_iter().flatten().try_for_each(|(name, tensor)| states.set(&name, &tensor))
        })?;
        Ok(states)
    }

    /// Writes the model as a checkpoint of Kernfusion, one parameter after another.
    ///
    /// # Errors
    /// If the checkpoint cannot be written; one that was there before is then untouched.
    pub fn import(&self, directory: &Path) -> Result<()> {
        let meta = Meta {
            config: json!(self.config),
            step: 0,
            seed: 0,
            tokenizer: json!(self.tokenizer),
            training: json!({"method": "import", "special": self.special}),
        };
        let shapes = self.parameters.values().map(|one| (one.name.as_str(), one.shape.as_slice()));
        let shapes: Vec<_> = shapes.collect();
        Ok(Checkpoint::save_from(directory, &meta, &shapes, &mut |name, write| {
            write(&self.numbers(&self.parameters[name]))
        })?)
    }

    /// The numbers of a parameter, row-major.
    fn numbers(&self, parameter: &Parameter) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(parameter.shape.iter().product());
        for part in &parameter.parts {
            let appended = self.stored(&part.name).and_then(|name| self.files.append(&name, &mut numbers));
            appended.expect("all tensors have been found and can be read");
        }
        parameter.assemble(numbers)
    }

    /// The name under which the files have a tensor: its own, that without the common beginning, or that of a partner which is no
    /// parameter by itself.
    fn stored(&self, name: &str) -> Option<String> {
        let is_parameter = |name: &str| {
            let mut parts = self.parameters.values().flat_map(|parameter| &parameter.parts);
            parts.any(|part| part.name == name)
        };
        let partners = self.ties.iter().find(|tie| tie[0] == name).map_or(&[][..], |tie| &tie[1..]);
        let partners = partners.iter().copied().filter(|partner| !is_parameter(partner));
        let names = std::iter::once(name).chain(partners);
        let mut forms = names.flat_map(|name| [Some(name), name.strip_prefix(self.base)]).flatten();
        forms.find(|name| self.files.shape(name).is_some()).map(String::from)
    }

    /// Compares all tensors with the model.
    fn check(&self, architecture: &Architecture) -> std::result::Result<(), HuggingFaceError> {
        let parts: Vec<_> = self.parameters.values().flat_map(|parameter| &parameter.parts).collect();
        let expected = parts.iter().map(|part| (part.name.clone(), part.shape.clone())).collect();
        let used = parts.iter().filter_map(|part| Some((part.name.clone(), self.stored(&part.name)?)));
        let used: BTreeMap<String, String> = used.collect();
        let names: BTreeSet<&str> = used.values().map(String::as_str).collect();
        let left = self.files.names().filter(|name| !names.contains(name));
        let left =
            left.filter(|name| !self.may_be_stored(architecture, name)).map(|name| (name.into(), name));
        let found = used.iter().map(|(name, stored)| (name.clone(), stored.as_str())).chain(left);
        let found = found.map(|(name, stored)| (name, self.files.shape(stored).unwrap_or_default()));
        let mut problems = misfits(&expected, &found.collect());
        let unreadable = names.iter().filter_map(|name| Some((name, self.files.unreadable(name)?)));
        problems.extend(
            unreadable.map(|(name, dtype)| format!("{name} has numbers of {dtype}, not F32, BF16 or F16")),
        );
        match problems.is_empty() {
            true => Ok(()),
            false => Err(HuggingFaceError::Misfit { directory: self.directory.clone(), problems }),
        }
    }

    /// Whether a tensor that no parameter needs is none of another model's: a copy of one that is shared, or a buffer.
    fn may_be_stored(&self, architecture: &Architecture, name: &str) -> bool {
        let mut ties = self.ties.iter().filter(|tie| tie[1..].contains(&name));
        let is_copy = |tie: &&[&str]| self.stored(tie[0]).is_some_and(|first| self.files.equal(&first, name));
        ties.any(is_copy) || architecture.extras.iter().any(|end| name.ends_with(end))
    }
}

/// Gives the model an output layer of its own where the files have one that differs from the embedding, whatever the configuration
/// says; so does transformers.
fn untie(config: &mut ModelConfig, architecture: &Architecture, files: &Files) {
    let [embedding, head] = architecture.tied_head();
    let embedding = [Some(embedding), embedding.strip_prefix(architecture.base)];
    let differs = |name: &str| files.shape(name).is_some() && !files.equal(name, head);
    if files.shape(head).is_some() && embedding.into_iter().flatten().any(differs) {
        match config {
            ModelConfig::Gpt(config) => config.tied = false,
            ModelConfig::EncoderDecoder(config) => config.tied = false,
            ModelConfig::Bert(_) | ModelConfig::Recurrent(_) => {}
        }
    }
}

/// Refuses a model of more experts than there are tensors. Each expert has tensors of its own, and the names alone of those that are
/// missing could take far more memory than the files.
fn check_experts(config: &ModelConfig, tensors: usize) -> std::result::Result<(), String> {
    let ModelConfig::Gpt(config) = config else { return Ok(()) };
    match config.experts {
        Some(Experts { count, .. }) if count > tensors => {
            Err(format!("it describes {count} experts, but the folder has only {tensors} tensors"))
        }
        _ => Ok(()),
    }
}

/// Each parameter of a model by its name, with where it is in a checkpoint.
fn parameters(
    architecture: &Architecture,
    config: &ModelConfig,
) -> std::result::Result<BTreeMap<String, Parameter>, String> {
    let heads = architecture::heads(config);
    let variant = architecture.variants[usize::from(architecture::is_gated(config))];
    let tables = [architecture.tables, &[variant]].concat();
    let list = config.parameter_list().map_err(|error| error.reason())?;
    let found = list.into_iter().map(|parameter| {
        let found = Parameter::find(&tables, &parameter.name, &parameter.shape, heads);
        let found = found.ok_or_else(|| {
            format!("a {} has no place for {} {:?}", architecture.model_type, parameter.name, parameter.shape)
        })?;
        Ok((parameter.name, found))
    });
    found.collect()
}

fn tokenizer(
    directory: &Path,
    config: &ModelConfig,
) -> std::result::Result<Option<Tokenizer>, HuggingFaceError> {
    let path = directory.join(TOKENIZER);
    if !path.exists() {
        return Ok(None);
    }
    let tokenizer = Tokenizer::read_marked(&path)?;
    let (size, known) = (tokenizer.vocabulary_size(), config.vocabulary());
    if size > known {
        let last = tokenizer.token(size as i32 - 1).unwrap_or_default();
        let reason = format!("its last token {:?} has the id {}, but vocab_size is {known}", last, size - 1);
        return Err(HuggingFaceError::Content { path, reason });
    }
    Ok(Some(tokenizer))
}

fn notes(fields: &Fields) -> Vec<String> {
    let left = fields.left();
    match left.is_empty() {
        true => vec![],
        false => vec![format!("{CONFIG} has fields that are not known here: {}", left.join(", "))],
    }
}

fn read(path: &Path) -> std::result::Result<String, HuggingFaceError> {
    kernfusion::input_file::read_text(path)
        .map_err(|cause| HuggingFaceError::Read { path: path.into(), cause })
}

#[cfg(test)]
mod tests;
