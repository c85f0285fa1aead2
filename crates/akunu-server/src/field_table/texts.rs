//! The fields of Jina's, Cohere's and Text Embeddings Inference's protocols.

use super::{Group, POST, Route, done, ignored, refused};

pub(crate) const RERANK: Route =
    Route { paths: &["/v1/rerank", "/v2/rerank"], groups: &[&RERANK_FIELDS], ..POST };

pub(crate) const TEI_EMBED: Route = Route { paths: &["/embed"], groups: &[&TEI_EMBED_FIELDS], ..POST };

pub(crate) const TEI_RERANK: Route = Route { paths: &["/rerank"], groups: &[&TEI_RERANK_FIELDS], ..POST };

const AT_END: &str = "texts are truncated at their end";

const RERANK_FIELDS: Group = Group {
    title: "Reranking, Jina and Cohere",
    fields: &[
        done("model", r#""ranker""#, "a name or an alias; the first model if it is left out"),
        done("query", r#""w5""#, "a text"),
        done("documents", r#"["w5", {"text": "w6"}]"#, "texts, or objects with a `text`"),
        done("top_n", "1", "only the best"),
        done("return_documents", "true", "the documents with their scores"),
        done("truncate", "true", "ours: truncates documents that are too long"),
        done("max_tokens_per_doc", "3", "truncates each document to so many tokens"),
        ignored("priority", "1", "texts are batched in order of arrival"),
        ignored("user", r#""me""#, "users are told apart by their API keys"),
        refused("max_chunks_per_doc", "2", "use 'max_tokens_per_doc'").unless("[1]"),
        refused("rank_fields", r#"["title"]"#, "documents are ranked by their 'text'")
            .unless(r#"[["text"]]"#),
        refused("truncation", "true", "use 'truncate'"),
        refused("truncate_prompt_tokens", "10", "use 'truncate'"),
        refused("return_embeddings", "true", "use /v1/embeddings"),
    ],
};

const TEI_EMBED_FIELDS: Group = Group {
    title: "Embeddings, Text Embeddings Inference",
    fields: &[
        done("model", r#""words""#, "ours: a name or an alias; the first model if it is left out"),
        done("inputs", r#""w5 w6""#, "a text, token ids, or a list of either"),
        done("normalize", "false", "false: vectors as the model gives them"),
        done("truncate", "true", "truncates texts that are too long"),
        done("prompt_name", r#""query""#, "a prompt of the model's files, before each text"),
        done("dimensions", "4", "keeps so many, and normalises again"),
        refused("truncation_direction", r#""Left""#, AT_END).unless(r#"["Right", "right"]"#),
    ],
};

const TEI_RERANK_FIELDS: Group = Group {
    title: "Reranking, Text Embeddings Inference",
    fields: &[
        done("model", r#""ranker""#, "ours: a name or an alias; the first model if it is left out"),
        done("query", r#""w5""#, "a text"),
        done("texts", r#"["w5", "w6"]"#, "the documents"),
        done("raw_scores", "true", "the classifier's own scores"),
        done("return_text", "true", "the documents with their scores"),
        done("truncate", "true", "truncates documents that are too long"),
        refused("truncation_direction", r#""Left""#, AT_END).unless(r#"["Right", "right"]"#),
    ],
};
