//! Messages are read as they were written, and nothing else is.

use akunu_plan::{Move, Row};

use super::*;

fn options() -> PlanOptions {
    PlanOptions {
        context: 1,
        slots: 2,
        kv: KvType::Q8_0,
        kv_bytes: Some(3),
        prefill_rows: 4,
        prefill_logit_rows: 5,
        chain: 6,
        windows: 7,
        beams: 8,
        word_times: true,
        fuse: false,
        keep_inputs: true,
        host: OnHost { layers: 9, experts: 10 },
        stages: vec![3, 5],
        stream_rows: None,
    }
}

fn requests() -> Vec<Request<'static>> {
    let rows = [Row::causal(1, 2, 3), Row::causal(4, 5, 6)];
    let submission =
        Submission { entries: Entries::Rows(&rows), logit_rows: &[1], steps: 3, stop: &[7, 8], cancel: None };
    let rows = Work::of(&submission, false);
    let moves = [Move { from: 1, to: 2, len: 3 }];
    let moves = Work::of(&Submission { entries: Entries::Moves(&moves), ..submission }, true);
    let strips = Strips { first: 1, bytes: 2, pitch: 3, count: 2 };
    vec![
        Request::Load {
            options: options(),
            model: vec![1, u64::MAX],
            plan: vec![("decode".into(), 5), ("prefill".into(), 6)],
        },
        Request::Upload { buffer: 1, offset: 2, is_beside: true, bytes: &[3, 4, 5] },
        Request::UploadStrips { buffer: 1, strips, bytes: &[1, 2, 3, 4] },
        Request::DownloadStrips { buffer: 1, strips },
        Request::Replay { replay: 1, work: rows.clone() },
        Request::Follow { replay: 2, work: moves.clone() },
        Request::Peek { buffer: 1, bytes: 10 },
        Request::Wait,
        Request::RunRange { replay: 1, work: moves, first: 2, count: 3 },
        Request::TimeCommands { replay: 1, work: rows, count: 9 },
        Request::End,
    ]
}

const REPLIES: [Reply<'static>; 5] = [
    Reply::Done,
    Reply::Steps(4),
    Reply::Bytes(&[1, 2]),
    Reply::OtherModel { entry: 3, found: "blk.0" },
    Reply::Failed("why"),
];

#[test]
fn requests_and_replies_are_read_as_they_were_written() {
    for request in requests() {
        assert_eq!(Request::read(&request.frame()).unwrap(), request);
    }
    for reply in REPLIES {
        assert_eq!(Reply::read(&reply.frame()).unwrap(), reply);
    }
    let all = requests();
    let Request::Replay { work, .. } = &all[4] else { panic!("{:?}", all[4]) };
    let submission = work.submission();
    assert_eq!(submission.entries, Entries::Rows(&[Row::causal(1, 2, 3), Row::causal(4, 5, 6)]));
    assert_eq!((submission.logit_rows, submission.stop, submission.steps), (&[1][..], &[7, 8][..], 3));
}

#[test]
fn cut_and_changed_frames_are_errors_or_other_messages() {
    let frames =
        requests().into_iter().map(|request| request.frame()).chain(REPLIES.map(|reply| reply.frame()));
    for frame in frames.collect::<Vec<_>>() {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        assert_eq!(read_all(&bytes, FRAME_BYTES).unwrap(), bytes);
        for end in 1..bytes.len() {
            let (written, error) = read_all(&bytes[..end], FRAME_BYTES).unwrap_err();
            assert!(written.is_empty() && matches!(error, FrameError::Truncated), "{end}: {error}");
        }
        for index in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[index] ^= change;
                if let Ok(written) = read_all(&changed, FRAME_BYTES) {
                    assert_eq!(written, changed);
                }
            }
        }
        let mut longer = frame.body;
        longer.push(0);
        let longer = Frame { kind: frame.kind, body: longer };
        assert!(Request::read(&longer).is_err() && Reply::read(&longer).is_err());
    }
}

#[test]
fn lengths_are_limited_before_memory_is_taken() {
    let mut bytes = u32::MAX.to_le_bytes().to_vec();
    bytes.extend([WAIT, 1, 2, 3]);
    let (_, error) = read_all(&bytes, FRAME_BYTES).unwrap_err();
    assert!(matches!(error, FrameError::TooLong { most: FRAME_BYTES, .. }), "{error}");
    // Not longer than allowed, but there is no more: what is announced is not allocated.
    let mut bytes = (FRAME_BYTES as u32).to_le_bytes().to_vec();
    bytes.extend([WAIT, 1, 2, 3]);
    assert!(matches!(read_all(&bytes, FRAME_BYTES), Err((_, FrameError::Truncated))));
    let huge = Strips { first: 0, bytes: usize::MAX, pitch: 1, count: 2 };
    let frame = Request::DownloadStrips { buffer: 0, strips: huge }.frame();
    assert!(matches!(Request::read(&frame), Err(FrameError::Malformed(_))));
    let frame = Request::Peek { buffer: 0, bytes: FRAME_BYTES + 1 }.frame();
    assert!(matches!(Request::read(&frame), Err(FrameError::Malformed(_))));
}
