//! Chat templates: how a conversation is written as one text for a model that was trained to answer. A template is a text in the language
//! Jinja, in `chat_template.jinja` or in the field `chat_template` of `tokenizer_config.json`. It sees what it sees in transformers: the messages,
//! the tokenizer's special tokens by name, that an answer comes next, and that there are no tools and no documents.

use crate::error::HuggingFaceError;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, context};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of a template, and that of a tokenizer's settings.
const TEMPLATE: &str = "chat_template.jinja";
const SETTINGS: &str = "tokenizer_config.json";
/// The name of the template, where there are several.
const DEFAULT: &str = "default";

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that come before the conversation.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into() }
    }
}

/// How a conversation is written as one text.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
    /// Where it was read.
    path: PathBuf,
}

/// What is read of a tokenizer's settings.
#[derive(Deserialize, Default)]
struct Settings {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// One template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Several(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl ChatTemplate {
    /// Reads the template of the model in a folder; none if it has none.
    ///
    /// # Errors
    /// If a file cannot be read, or is not what it should be.
    pub fn read(directory: &Path) -> Result<Option<Self>, HuggingFaceError> {
        let [template, settings] = [TEMPLATE, SETTINGS].map(|name| directory.join(name));
        let text = |path: &Path| match kernfusion::input_file::read_text(path) {
            Ok(text) => Ok(Some(text)),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(HuggingFaceError::Read { path: path.into(), cause }),
        };
        let Settings { chat_template, others } = match text(&settings)? {
            None => Settings::default(),
            Some(text) => serde_json::from_str(&text).map_err(|error| HuggingFaceError::Content {
                path: settings.clone(),
                reason: error.to_string(),
            })?,
        };
        let found = match text(&template)? {
            Some(text) => Some((text, template)),
            None => chat_template.and_then(Templates::one).map(|text| (text, settings)),
        };
        found.map(|(text, path)| ChatTemplate::new(&text, special_tokens(&others), path)).transpose()
    }

    fn new(
        text: &str,
        special_tokens: BTreeMap<String, String>,
        path: PathBuf,
    ) -> Result<Self, HuggingFaceError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        // Templates call methods of Python's strings, lists and dictionaries.
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_function("strftime_now", |format: String| {
            jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
                .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        let added = environment.add_template_owned(DEFAULT, without_generation_blocks(text));
        if let Err(error) = added {
            let reason = format!("line {}: {}", error.line().unwrap_or(1), reason(&error));
            return Err(HuggingFaceError::Content { path, reason });
        }
        Ok(ChatTemplate { environment, special_tokens, path })
    }

    /// A conversation as one text, which the model's answer follows.
    ///
    /// # Errors
    /// If the template refuses it, as some refuse two messages of the same role in a row.
    pub fn render(&self, messages: &[Message]) -> Result<String, HuggingFaceError> {
        let none = Value::from(());
        let conversation = context! {
            messages => messages,
            add_generation_prompt => true,
            tools => none,
            documents => none,
            ..Value::from_serialize(&self.special_tokens)
        };
        let rendered =
            self.environment.get_template(DEFAULT).and_then(|template| template.render(conversation));
        rendered
            .map_err(|error| HuggingFaceError::Content { path: self.path.clone(), reason: reason(&error) })
    }
}

/// What is wrong, without what kind of mistake it is.
fn reason(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), String::from)
}

impl Templates {
    /// The one that conversations are written with.
    fn one(self) -> Option<String> {
        match self {
            Templates::One(text) => Some(text),
            Templates::Several(all) => {
                all.into_iter().find(|named| named.name == DEFAULT).map(|named| named.template)
            }
        }
    }
}

/// Special tokens by name, such as `bos_token`: texts, or objects with a text.
fn special_tokens(settings: &BTreeMap<String, serde_json::Value>) -> BTreeMap<String, String> {
    let text =
        |value: &serde_json::Value| value.as_str().or_else(|| value["content"].as_str()).map(String::from);
    let tokens = settings.iter().filter(|(name, _)| name.ends_with("_token"));
    tokens.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

/// A template without blocks `generation`, which only transformers knows: they mark what the model wrote, and become blocks that are
/// always rendered.
fn without_generation_blocks(template: &str) -> String {
    let mut parts = template.split("{%");
    let mut written = parts.next().unwrap_or_default().to_string();
    for part in parts {
        written.push_str("{%");
        let name = part.trim_start_matches(['-', '+']).trim_start();
        let before = &part[..part.len() - name.len()];
        let ends = |rest: &str| rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        let replaced = [("endgeneration", "endif"), ("generation", "if true")]
            .into_iter()
            .find_map(|(mark, block)| Some((block, name.strip_prefix(mark).filter(|rest| ends(rest))?)));
        match replaced {
            Some((block, rest)) => [before, block, rest].into_iter().for_each(|text| written.push_str(text)),
            None => written.push_str(part),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};
    use std::fs;

    /// A template as a folder has it.
    fn read(files: &[(&str, String)]) -> Result<Option<ChatTemplate>, HuggingFaceError> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        ChatTemplate::read(folder.path())
    }

    /// Templates and what transformers makes of them (`benches/peers/chat_fixtures.py`), in each of the places where they are found.
    #[test]
    fn conversations_are_written_as_transformers_writes_them() {
        let fixture: Json =
            serde_json::from_str(include_str!("../../../tests/fixtures/chat_templates.json")).unwrap();
        for case in fixture["cases"].as_array().unwrap() {
            let text = case["template"].as_str().unwrap();
            let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let with = |template: Json| {
                let mut settings = fixture["special_tokens"].clone();
                settings["chat_template"] = template;
                (SETTINGS, settings.to_string())
            };
            let several = json!([{"name": "tools", "template": "-"}, {"name": "default", "template": text}]);
            for files in [
                vec![with(json!(text))],
                vec![with(several)],
                vec![with(json!("not this one")), (TEMPLATE, text.to_string())],
            ] {
                let rendered = read(&files).unwrap().expect("a template").render(&messages);
                match (&case["text"], rendered) {
                    (Json::String(text), rendered) => {
                        assert_eq!(&rendered.unwrap(), text, "{}", case["name"])
                    }
                    (_, Err(HuggingFaceError::Content { reason, .. })) => assert_eq!(reason, case["error"]),
                    (_, other) => panic!("{}: {other:?}", case["name"]),
                }
            }
        }
    }

    #[test]
    fn what_is_no_template_is_said_by_its_file() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[(SETTINGS, "{}".into())]).unwrap().is_none());
        let named = json!({"chat_template": [{"name": "tools", "template": ""}]});
        assert!(read(&[(SETTINGS, named.to_string())]).unwrap().is_none());
        let refused = |files: &[(&str, String)]| read(files).unwrap_err().to_string();
        assert!(refused(&[(SETTINGS, "[".into())]).contains(SETTINGS));
        assert!(refused(&[(SETTINGS, json!({"chat_template": 3}).to_string())]).contains(SETTINGS));
        let broken = refused(&[(TEMPLATE, "{% for x in %}".into())]);
        assert!(broken.contains(TEMPLATE) && broken.contains("line 1"), "{broken}");
        let unknown = read(&[(TEMPLATE, "{{ messages | upside_down }}".into())]).unwrap().unwrap();
        let unknown = unknown.render(&[]).unwrap_err().to_string();
        assert!(unknown.contains(TEMPLATE) && unknown.contains("upside_down"), "{unknown}");
    }
}
