//! A single request, in a session and on the thread of the caller.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::active::Active;
use super::batch::Batch;
use super::request::Event;
use crate::generation::Generation;
use crate::output::OnPiece;
use crate::{Engine, Error, Generated, Piece, Session};

/// Generates like a scheduler with one slot and one request. The session holds a prefix of the prompt.
pub(crate) fn run_alone(
    engine: &mut Engine,
    session: &mut Session,
    generation: Generation,
    logprobs: Option<usize>,
    on_piece: OnPiece<'_>,
) -> Result<Generated, Error> {
    let expected = generation.output.left().min(engine.context());
    let (mut ids, mut ended) = (Vec::with_capacity(expected), None);
    let on_event = |event: Event<'_>| {
        match event {
            Event::Started { .. } | Event::StepEnd => {}
            Event::Piece { text, ids: more, logprobs } => {
                ids.extend_from_slice(more);
                return on_piece(Piece { text, ids: more, logprobs });
            }
            Event::Finished(finished) => ended = Some(Ok(finished)),
            Event::Failed(error) => ended = Some(Err(error)),
        }
        ControlFlow::Continue(())
    };
    let mut batch = Batch::of_one(session, Active::prepared(generation, logprobs, Box::new(on_event)));
    while !batch.is_idle() {
        batch.make_ready(engine);
        batch.step(engine);
    }
    drop(batch);
    match ended {
        Some(Ok(finished)) => {
            let super::Finished { finish, dropped, timings, .. } = finished;
            Ok(Generated { finish, ids, dropped, timings })
        }
        // A panic of the callback continues in the caller.
        Some(Err(Error::Panicked { message })) => std::panic::resume_unwind(Box::new(message)),
        Some(Err(Error::Shared(error))) => Err(Arc::try_unwrap(error).unwrap_or_else(Error::Shared)),
        Some(Err(error)) => Err(error),
        None => Err(Error::Panicked { message: "a request ended without a result".into() }),
    }
}
