//! What a leader asks of a worker, and what that answers.

use akunu_plan::{Entries, KvType, OnHost, PlanOptions, Strips, Submission};

use super::frame::{FRAME_BYTES, Frame, FrameError, Reader, Writer};

/// The sender is there.
pub(crate) const ALIVE: u8 = 0;

const LOAD: u8 = 1;
const UPLOAD: u8 = 2;
const UPLOAD_STRIPS: u8 = 3;
const DOWNLOAD_STRIPS: u8 = 4;
const REPLAY: u8 = 5;
const FOLLOW: u8 = 6;
const PEEK: u8 = 7;
const WAIT: u8 = 8;
const RUN_RANGE: u8 = 9;
const TIME_COMMANDS: u8 = 10;
const END: u8 = 11;

const DONE: u8 = 64;
const STEPS: u8 = 65;
const BYTES: u8 = 66;
const OTHER_MODEL: u8 = 67;
const FAILED: u8 = 68;

/// The part of an upload that is sent at once.
pub(crate) const UPLOAD_BYTES: usize = FRAME_BYTES / 2;

/// A part of a plan, by its name, and its digest.
pub(crate) type Digests = Vec<(String, u64)>;

/// Each is a call of the device of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request<'a> {
    /// Plan, check that the model and the plan are those of the leader ([`Reply::Done`]), and load ([`Reply::Done`]).
    Load {
        options: PlanOptions,
        model: Vec<u64>,
        plan: Digests,
    },
    Upload {
        buffer: u32,
        offset: u64,
        is_beside: bool,
        bytes: &'a [u8],
    },
    UploadStrips {
        buffer: u32,
        strips: Strips,
        bytes: &'a [u8],
    },
    /// Answered with [`Reply::Bytes`].
    DownloadStrips {
        buffer: u32,
        strips: Strips,
    },
    Replay {
        replay: u32,
        work: Work,
    },
    Follow {
        replay: u32,
        work: Work,
    },
    Peek {
        buffer: u32,
        bytes: usize,
    },
    /// Answered with [`Reply::Steps`].
    Wait,
    /// Answered with [`Reply::Done`].
    RunRange {
        replay: u32,
        work: Work,
        first: usize,
        count: usize,
    },
    /// Answered with [`Reply::Done`].
    TimeCommands {
        replay: u32,
        work: Work,
        count: usize,
    },
    /// The leader needs the worker no more.
    End,
}

/// A [`Submission`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    are_moves: bool,
    /// Rows or moves.
    entries: Vec<u32>,
    logit_rows: Vec<u32>,
    stop: Vec<u32>,
    steps: usize,
    /// It was cancelled before it began.
    pub(crate) is_cancelled: bool,
}

impl Work {
    pub(crate) fn of(submission: &Submission<'_>, is_cancelled: bool) -> Work {
        Work {
            are_moves: matches!(submission.entries, Entries::Moves(_)),
            // Rows and moves are words.
            entries: bytemuck::cast_slice(submission.entries.bytes()).to_vec(),
            logit_rows: submission.logit_rows.to_vec(),
            stop: submission.stop.to_vec(),
            steps: submission.steps,
            is_cancelled,
        }
    }

    pub(crate) fn submission(&self) -> Submission<'_> {
        let entries = match self.are_moves {
            true => Entries::Moves(bytemuck::cast_slice(&self.entries)),
            false => Entries::Rows(bytemuck::cast_slice(&self.entries)),
        };
        Submission {
            entries,
            logit_rows: &self.logit_rows,
            steps: self.steps,
            stop: &self.stop,
            cancel: None,
        }
    }

    fn write(&self, to: Writer) -> Writer {
        to.flag(self.are_moves)
            .bytes(bytemuck::cast_slice(&self.entries))
            .bytes(bytemuck::cast_slice(&self.logit_rows))
            .bytes(bytemuck::cast_slice(&self.stop))
            .number(self.steps as u64)
            .flag(self.is_cancelled)
    }

    fn read(from: &mut Reader<'_>) -> Result<Work, FrameError> {
        let work = Work {
            are_moves: from.flag()?,
            entries: from.words()?,
            logit_rows: from.words()?,
            stop: from.words()?,
            steps: from.count()?,
            is_cancelled: from.flag()?,
        };
        let words = if work.are_moves { MOVE_WORDS } else { ROW_WORDS };
        match work.entries.len().is_multiple_of(words) {
            true => Ok(work),
            false => Err(FrameError::Malformed("a list is not whole entries")),
        }
    }
}

/// Of a table.
const MOST_COMMANDS: usize = 1 << 20;
const ROW_WORDS: usize = akunu_plan::Row::BYTES / 4;
const MOVE_WORDS: usize = akunu_plan::Move::BYTES / 4;

fn write_strips(to: Writer, strips: &Strips) -> Writer {
    let &Strips { first, bytes, pitch, count } = strips;
    to.number(first).number(bytes as u64).number(pitch).number(count as u64)
}

fn read_strips(from: &mut Reader<'_>) -> Result<Strips, FrameError> {
    let strips =
        Strips { first: from.number()?, bytes: from.count()?, pitch: from.number()?, count: from.count()? };
    let all = strips.bytes.checked_mul(strips.count).filter(|all| *all <= FRAME_BYTES);
    let last = (strips.count as u64).checked_mul(strips.pitch).and_then(|end| end.checked_add(strips.first));
    match (all, last) {
        (Some(_), Some(_)) => Ok(strips),
        _ => Err(FrameError::Malformed("parts of a buffer are too long")),
    }
}

fn write_options(to: Writer, options: &PlanOptions) -> Writer {
    // A field that is added has to be written too.
    let &PlanOptions {
        context,
        slots,
        kv,
        kv_bytes,
        prefill_rows,
        prefill_logit_rows,
        chain,
        windows,
        beams,
        word_times,
        fuse,
        keep_inputs,
        host: OnHost { layers, experts },
        ref stages,
        stream_rows,
    } = options;
    let sizes = [context, slots, prefill_rows, prefill_logit_rows, chain, windows, beams, layers, experts];
    let to = sizes.iter().fold(to, |to, size| to.number(*size as u64));
    to.bytes(kv.name().as_bytes())
        .optional(kv_bytes)
        .flag(word_times)
        .flag(fuse)
        .flag(keep_inputs)
        .bytes(
            &stages
                .iter()
                .flat_map(|first| u32::try_from(*first).unwrap_or(u32::MAX).to_le_bytes())
                .collect::<Vec<u8>>(),
        )
        .optional(stream_rows.map(|rows| rows as u64))
}

fn read_options(from: &mut Reader<'_>) -> Result<PlanOptions, FrameError> {
    let mut sizes = [0; 9];
    for size in &mut sizes {
        *size = from.count()?;
    }
    let [context, slots, prefill_rows, prefill_logit_rows, chain, windows, beams, layers, experts] = sizes;
    Ok(PlanOptions {
        context,
        slots,
        kv: KvType::from_name(from.text()?).ok_or(FrameError::Malformed("an unknown type of the cache"))?,
        kv_bytes: from.optional()?,
        prefill_rows,
        prefill_logit_rows,
        chain,
        windows,
        beams,
        word_times: from.flag()?,
        fuse: from.flag()?,
        keep_inputs: from.flag()?,
        host: OnHost { layers, experts },
        stages: from.words()?.into_iter().map(|first| first as usize).collect(),
        stream_rows: from
            .optional()?
            .map(usize::try_from)
            .transpose()
            .map_err(|_| FrameError::Malformed("a number is too large"))?,
    })
}

impl<'a> Request<'a> {
    pub(crate) fn frame(&self) -> Frame {
        let new = Writer::default;
        let handle = |number: u32| new().number(u64::from(number));
        let (kind, body) = match self {
            Request::Load { options, model, plan } => {
                let to = write_options(new(), options).bytes(bytemuck::cast_slice(model));
                let to = to.number(plan.len() as u64);
                let add =
                    |to: Writer, (name, digest): &(String, u64)| to.bytes(name.as_bytes()).number(*digest);
                (LOAD, plan.iter().fold(to, add))
            }
            Request::Upload { buffer, offset, is_beside, bytes } => {
                (UPLOAD, handle(*buffer).number(*offset).flag(*is_beside).bytes(bytes))
            }
            Request::UploadStrips { buffer, strips, bytes } => {
                (UPLOAD_STRIPS, write_strips(handle(*buffer), strips).bytes(bytes))
            }
            Request::DownloadStrips { buffer, strips } => {
                (DOWNLOAD_STRIPS, write_strips(handle(*buffer), strips))
            }
            Request::Replay { replay, work } => (REPLAY, work.write(handle(*replay))),
            Request::Follow { replay, work } => (FOLLOW, work.write(handle(*replay))),
            Request::Peek { buffer, bytes } => (PEEK, handle(*buffer).number(*bytes as u64)),
            Request::Wait => (WAIT, new()),
            Request::RunRange { replay, work, first, count } => {
                (RUN_RANGE, work.write(handle(*replay)).number(*first as u64).number(*count as u64))
            }
            Request::TimeCommands { replay, work, count } => {
                (TIME_COMMANDS, work.write(handle(*replay)).number(*count as u64))
            }
            Request::End => (END, new()),
        };
        Frame { kind, body: body.0 }
    }

    pub(crate) fn read(frame: &'a Frame) -> Result<Request<'a>, FrameError> {
        let mut from = Reader(&frame.body);
        let request = match frame.kind {
            LOAD => {
                let options = read_options(&mut from)?;
                let (model, rest) = from.bytes()?.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(FrameError::Malformed("a list is not whole numbers"));
                }
                let model = model.iter().map(|digest| u64::from_le_bytes(*digest)).collect();
                let mut plan = Digests::new();
                for _ in 0..from.count()? {
                    plan.push((from.text()?.to_string(), from.number()?));
                }
                Request::Load { options, model, plan }
            }
            UPLOAD => Request::Upload {
                buffer: from.handle()?,
                offset: from.number()?,
                is_beside: from.flag()?,
                bytes: from.bytes()?,
            },
            UPLOAD_STRIPS => {
                let (buffer, strips, bytes) = (from.handle()?, read_strips(&mut from)?, from.bytes()?);
                if bytes.len() != strips.all() {
                    return Err(FrameError::Malformed("parts of a buffer are not as long as they should be"));
                }
                Request::UploadStrips { buffer, strips, bytes }
            }
            DOWNLOAD_STRIPS => {
                Request::DownloadStrips { buffer: from.handle()?, strips: read_strips(&mut from)? }
            }
            REPLAY => Request::Replay { replay: from.handle()?, work: Work::read(&mut from)? },
            FOLLOW => Request::Follow { replay: from.handle()?, work: Work::read(&mut from)? },
            PEEK => {
                let (buffer, bytes) = (from.handle()?, from.count()?);
                if bytes > FRAME_BYTES {
                    return Err(FrameError::Malformed("a part of a buffer is too long"));
                }
                Request::Peek { buffer, bytes }
            }
            WAIT => Request::Wait,
            RUN_RANGE => Request::RunRange {
                replay: from.handle()?,
                work: Work::read(&mut from)?,
                first: from.count()?,
                count: from.count()?,
            },
            TIME_COMMANDS => {
                let (replay, work) = (from.handle()?, Work::read(&mut from)?);
                let count = from.count()?;
                if count > MOST_COMMANDS {
                    return Err(FrameError::Malformed("a table does not have so many commands"));
                }
                Request::TimeCommands { replay, work, count }
            }
            END => Request::End,
            _ => return Err(FrameError::Malformed("an unknown kind of request")),
        };
        from.end().map(|()| request)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    Done,
    Steps(usize),
    Bytes(&'a [u8]),
    /// The first entry of the model that is not the leader's, and what the worker has there.
    OtherModel {
        entry: usize,
        found: &'a str,
    },
    /// The worker ends.
    Failed(&'a str),
}

impl<'a> Reply<'a> {
    pub(crate) fn frame(&self) -> Frame {
        let new = Writer::default;
        let (kind, body) = match self {
            Reply::Done => (DONE, new()),
            Reply::Steps(steps) => (STEPS, new().number(*steps as u64)),
            Reply::Bytes(bytes) => (BYTES, new().bytes(bytes)),
            Reply::OtherModel { entry, found } => {
                (OTHER_MODEL, new().number(*entry as u64).bytes(found.as_bytes()))
            }
            Reply::Failed(reason) => (FAILED, new().bytes(reason.as_bytes())),
        };
        Frame { kind, body: body.0 }
    }

    pub(crate) fn read(frame: &'a Frame) -> Result<Reply<'a>, FrameError> {
        let mut from = Reader(&frame.body);
        let reply = match frame.kind {
            DONE => Reply::Done,
            STEPS => Reply::Steps(from.count()?),
            BYTES => Reply::Bytes(from.bytes()?),
            OTHER_MODEL => Reply::OtherModel { entry: from.count()?, found: from.text()? },
            FAILED => Reply::Failed(from.text()?),
            _ => return Err(FrameError::Malformed("an unknown kind of reply")),
        };
        from.end().map(|()| reply)
    }
}

/// Reads frames to the end, and returns the bytes of those that are requests or replies, written again. `Err` has what
/// was read before the first mistake.
#[cfg(any(fuzzing, test))]
pub fn read_all(mut bytes: &[u8], most: usize) -> Result<Vec<u8>, (Vec<u8>, FrameError)> {
    let mut written = Vec::new();
    loop {
        let frame = match Frame::read(&mut bytes, most) {
            Ok(frame) => frame,
            Err(FrameError::Closed) => return Ok(written),
            Err(error) => return Err((written, error)),
        };
        let again = match (Request::read(&frame), Reply::read(&frame)) {
            (Ok(request), _) => request.frame(),
            (_, Ok(reply)) => reply.frame(),
            (Err(error), _) => return Err((written, error)),
        };
        // Writing to a vector does not fail.
        let _ = again.write(&mut written);
    }
}

#[cfg(test)]
mod tests;
