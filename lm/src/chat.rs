//! Conversations with published models that were trained to answer: the model's own chat template writes a conversation as one text, and the
//! model continues it.
//!
//! ```no_run
//! use kernfusion::compile::Target;
//! use kernfusion_lm::{chat::Conversation, hugging_face::Published, sample::Sampler};
//!
//! let model = Published::open("Qwen3-0.6B".as_ref())?;
//! let mut conversation = Conversation::new(&model, &Target::cpu())?;
//! conversation.begin("Be brief.");
//! let sampler = Sampler::new(0.7, None, Some(0.9), 1)?;
//! let answer = conversation.say("What is a compiler?", 500, &sampler, &mut |piece| print!("{piece}"))?;
//! # Ok::<(), kernfusion_lm::Error>(())
//! ```

use crate::generate::Generator;
use crate::hugging_face::{ChatTemplate, Message, Published, Role};
use crate::sample::Sampler;
use crate::{Error, Result};
use kernfusion::compile::Target;

/// A conversation with a model.
pub struct Conversation {
    generator: Generator,
    template: ChatTemplate,
    context: usize,
    messages: Vec<Message>,
}

impl Conversation {
    /// A conversation with a published model, in which nothing has been said. Its matrices are kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// As [`Generator::from_published`]; if the model has no chat template.
    pub fn new(model: &Published, target: &Target) -> Result<Self> {
        let template = model.chat_template()?;
        let generator = Generator::from_published(model, target)?;
        Ok(Conversation { generator, template, context: model.config().context(), messages: vec![] })
    }

    /// What has been said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Starts over with a system message: instructions that come before the conversation.
    pub fn begin(&mut self, system: &str) {
        self.messages = vec![Message::new(Role::System, system)];
    }

    /// Adds a message of the user and returns the model's answer of at most `tokens` tokens; `each` sees each one as it comes.
    ///
    /// Of what the template writes, the model reads only what differs from its last reading.
    ///
    /// # Errors
    /// If the template refuses the message, the conversation is longer than the model's context, or its numbers have overflowed. The
    /// message is not part of the conversation then.
    pub fn say(
        &mut self,
        message: &str,
        tokens: usize,
        sampler: &Sampler,
        each: &mut dyn FnMut(&str),
    ) -> Result<String> {
        let said = self.messages.len();
        self.messages.push(Message::new(Role::User, message));
        let answer = self.answer(tokens, sampler, each);
        match &answer {
            Ok(answer) => self.messages.push(Message::new(Role::Assistant, answer.as_str())),
            Err(_) => self.messages.truncate(said),
        }
        answer
    }

    fn answer(&mut self, tokens: usize, sampler: &Sampler, each: &mut dyn FnMut(&str)) -> Result<String> {
        let text = self.template.render(&self.messages)?;
        let read = self.generator.tokenizer().encode_unmarked(&text)?;
        if read.len() >= self.context {
            return Err(Error::LongConversation { tokens: read.len(), context: self.context });
        }
        self.generator.generate_after(&read, tokens, sampler, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use tempfile::TempDir;

    /// A copy of a small random model, with a template.
    fn model(template: &str) -> (TempDir, Published) {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hugging_face/qwen3");
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(fixture).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let model = Published::open(folder.path()).unwrap();
        (folder, model)
    }

    fn target() -> Target {
        Target::cpu().threads(1)
    }

    /// The likeliest answer to what the model has read as one text, by a model that has read nothing else.
    fn expected(model: &Published, text: &str, tokens: usize) -> String {
        let mut generator = Generator::from_published(model, &target()).unwrap();
        let read = model.tokenizer().unwrap().encode_unmarked(text).unwrap();
        generator.generate_after(&read, tokens, &sampler(), &mut |_| {}).unwrap()
    }

    fn sampler() -> Sampler {
        Sampler::new(0.0, None, None, 0).unwrap()
    }

    #[test]
    fn each_answer_is_that_to_the_whole_conversation() {
        // The second one shortens the answers that have been given, so that what was read is written in another way later.
        let whole = "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ ';' }}{% endfor %}a:";
        let shortened = whole.replace("m.content", "(m.content if m.role == 'user' else m.content[:2])");
        for (template, short) in [(whole.to_string(), false), (shortened, true)] {
            let (_folder, model) = model(&template);
            let mut conversation = Conversation::new(&model, &target()).unwrap();
            let mut text = String::new();
            for message in ["abc", "d", "efgh"] {
                let mut shown = String::new();
                let answer =
                    conversation.say(message, 7, &sampler(), &mut |piece| shown.push_str(piece)).unwrap();
                text += &format!("u:{message};a:");
                assert_eq!(answer, expected(&model, &text, 7), "{template}: {text}");
                assert_eq!(shown, answer);
                let kept: String = if short { answer.chars().take(2).collect() } else { answer };
                text += &format!("{kept};");
            }
            assert_eq!(conversation.messages().len(), 6);
        }
    }

    #[test]
    fn a_message_that_is_refused_was_not_said() {
        let (_folder, model) = model("{% for m in messages %}{{ m.role[0] ~ m.content }}{% endfor %}");
        let mut conversation = Conversation::new(&model, &target()).unwrap();
        conversation.begin("be");
        conversation.say("ab", 2, &sampler(), &mut |_| {}).unwrap();
        let said = conversation.messages().to_vec();
        assert_eq!(said[0], Message::new(Role::System, "be"));
        let context = model.config().context();
        let error =
            conversation.say(&"x".repeat(context), 2, &sampler(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(&format!("the model sees {context}: begin a new one")), "{error}");
        assert_eq!(conversation.messages(), said);
        conversation.say("cd", 2, &sampler(), &mut |_| {}).unwrap();
    }

    #[test]
    fn a_model_without_a_template_continues_texts_only() {
        let (folder, model) = model("");
        fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
        let error = Conversation::new(&model, &target()).err().expect("no template").to_string();
        assert!(error.contains("chat_template.jinja"), "{error}");
    }
}
