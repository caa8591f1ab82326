//! The messages of event files, only those that are needed. Names and numbers of fields are those of TensorFlow's `event.proto`,
//! `summary.proto` and `tensor.proto`.

/// What happened at a step.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

/// What an event says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum What {
    /// The first event of each file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    /// Readers forget what earlier files have of this step and later ones.
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// The state of a run.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Figures and texts.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

/// One of them, under its name.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
    #[prost(oneof = "Content", tags = "2, 8")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Content {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

/// Which of TensorBoard's plugins shows a value.
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
}

/// A tensor of strings.
#[derive(Clone, PartialEq, prost::Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    strings: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    extents: Vec<Extent>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Extent {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `SessionLog.START`.
const START: i32 = 1;

/// `DT_STRING`.
const STRING: i32 = 7;

impl SessionLog {
    /// A run begins or goes on.
    pub(super) fn start() -> Self {
        SessionLog { status: START }
    }
}

impl Value {
    pub(super) fn scalar(tag: &str, value: f64) -> Self {
        Value { tag: tag.into(), metadata: None, content: Some(Content::Scalar(value as f32)) }
    }

    /// A text, which TensorBoard takes as Markdown.
    pub(super) fn text(tag: &str, markdown: &str) -> Self {
        let shape = Some(Shape { extents: vec![Extent { size: 1 }] });
        let tensor = Tensor { dtype: STRING, shape, strings: vec![markdown.as_bytes().to_vec()] };
        let metadata = Some(Metadata { plugin: Some(Plugin { name: "text".into() }) });
        Value { tag: tag.into(), metadata, content: Some(Content::Tensor(tensor)) }
    }
}
