//! The fields of Ollama's protocol with which models are shown, made, downloaded and removed.

use super::{Field, Group, POST, Route, done, ignored, refused};

pub(crate) const SHOW: Route = Route { paths: &["/api/show"], groups: &[&SHOW_FIELDS], ..POST };
pub(crate) const CREATE: Route = Route { paths: &["/api/create"], groups: &[&CREATE_FIELDS], ..POST };
pub(crate) const COPY: Route = Route { paths: &["/api/copy"], groups: &[&COPY_FIELDS], ..POST };
pub(crate) const DELETE: Route =
    Route { paths: &["/api/delete"], groups: &[&DELETE_FIELDS], method: "DELETE", ..POST };
pub(crate) const PULL: Route = Route { paths: &["/api/pull"], groups: &[&PULL_FIELDS], ..POST };

const AS_IT_IS: &str = "the model is shown as it is";
const STREAM: Field = done("stream", "false", "true unless a request says otherwise");

const fn name(example: &'static str) -> Field {
    done("name", example, "the older name of `model`")
}

const SHOW_FIELDS: Group = Group {
    title: "Ollama's show",
    fields: &[
        done("model", r#""tales""#, "a name or an alias, required"),
        name(r#""tales""#),
        ignored("verbose", "true", "lists of tokens are not shown"),
        ignored("system", r#""Be brief.""#, AS_IT_IS),
        ignored("template", r#""{{ .Prompt }}""#, AS_IT_IS),
        ignored("options", r#"{"temperature": 0}"#, AS_IT_IS),
    ],
};

const CREATE_FIELDS: Group = Group {
    title: "Ollama's create",
    fields: &[
        done("model", r#""made""#, "the new name, required"),
        name(r#""made""#),
        done("from", r#""tales""#, "a model's name or alias, required here or in `modelfile`"),
        done("system", r#""Be brief.""#, "the system message of conversations that have none"),
        done(
            "template",
            r#""{{ .Prompt }}""#,
            "how conversations are written, in Go's or Jinja's language; else as the model's file says",
        ),
        done("parameters", r#"{"temperature": 0.5}"#, "options of requests that do not set them"),
        done("messages", r#"[{"role": "user", "content": "Hello"}]"#, "begin every conversation"),
        done("license", r#""MIT""#, "a text, or a list of texts"),
        done(
            "modelfile",
            r#""FROM tales""#,
            "a text with `FROM`, `PARAMETER`, `SYSTEM`, `TEMPLATE`, `MESSAGE`, `LICENSE`",
        ),
        STREAM,
        refused("adapters", r#"{"a": "sha256:0"}"#, "adapters are not available").unless("[{}]"),
        refused("files", r#"{"a": "sha256:0"}"#, "give the name of one of the server's models as 'from'")
            .unless("[{}]"),
        refused("quantize", r#""q4_K_M""#, "use akunu quantize"),
        refused("path", r#""Modelfile""#, "give the text of the file as 'modelfile'"),
    ],
};

const COPY_FIELDS: Group = Group {
    title: "Ollama's copy",
    fields: &[
        done("source", r#""tales""#, "a name or an alias, required"),
        done("destination", r#""copied""#, "the new name, required"),
    ],
};

const DELETE_FIELDS: Group = Group {
    title: "Ollama's delete",
    fields: &[
        done(
            "model",
            r#""made""#,
            "one that a client made; with `--allow-delete`, also a downloaded one with its files",
        ),
        name(r#""made""#),
    ],
};

const PULL_FIELDS: Group = Group {
    title: "Ollama's pull (`--allow-pull`)",
    fields: &[
        done("model", r#""hf.co/tiny/model-GGUF""#, "a model of the hub, or a short name, required"),
        name(r#""hf.co/tiny/model-GGUF""#),
        STREAM,
        refused("insecure", "true", "models are downloaded with verified connections only"),
    ],
};
