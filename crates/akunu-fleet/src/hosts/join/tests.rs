//! Workers that may join, and others.

use std::io::Write;

use super::*;
use crate::hosts::testing::{SECRET, USUAL, as_worker, listen, patient};

fn refusal(as_worker: &Join) -> String {
    match join(as_worker).unwrap_err() {
        HostsError::Refused { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Sends bytes, and reads until the connection is closed.
fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut found = Vec::new();
    // The system may reset a connection with bytes that were not read.
    let _ = stream.read_to_end(&mut found);
    found
}

fn written(kind: u8, body: Writer) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame { kind, body: body.0 }.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn only_workers_that_know_the_secret_join_each_with_its_own_rank() {
    let timing = patient(USUAL);
    let leader = listen(3, timing);
    let (address, of) = (leader.address(), |rank, ranks| as_worker(&leader, rank, ranks, timing));
    let (first, last, other_world, out_of_range) = (of(1, 3), of(2, 3), of(1, 2), of(3, 4));
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let lost = told.clone();
    let waiting = std::thread::spawn(move || {
        leader.wait(b"token", &|reason| lost.lock().unwrap().push(reason.to_string()))
    });

    let wrong = Join { secret: Some(Secret::new("another secret of tests")), ..first.clone() };
    assert_eq!(refusal(&wrong), "this worker does not know the secret");
    assert_eq!(refusal(&Join { secret: None, ..first.clone() }), "this worker does not know the secret");
    assert_eq!(refusal(&other_world), "it has --world 3, and this worker --world 2");
    assert_eq!(refusal(&out_of_range), "it has --world 3, and this worker --world 4");

    let hello = |version: u64| {
        written(HELLO, Writer::default().number(version).bytes(RELEASE.as_bytes()).bytes(&[7; 32]))
    };
    for end in 0..hello(VERSION).len() {
        assert_eq!(answer(address, &hello(VERSION)[..end]), b"", "{end}");
    }
    assert_eq!(answer(address, b"GET / HTTP/1.1\r\n\r\n"), b"");
    assert_eq!(answer(address, &[0xff; 5000]), b"");
    assert_eq!(answer(address, &written(PROOF, Writer::default())), b"");
    assert_eq!(answer(address, &hello(VERSION))[4], CHALLENGE);
    let other_version = answer(address, &hello(VERSION + 1));
    assert!(other_version[4] == REFUSED && other_version.ends_with(b"another release"));
    // A proof for another place than the one it comes with.
    let challenged =
        [hello(VERSION), written(PROOF, Writer::default().number(3).number(1).number(0))].concat();
    assert_eq!(answer(address, &challenged)[4], CHALLENGE);

    let first_session = join(&first).unwrap();
    assert_eq!(first_session.token(), b"token");
    assert_eq!(refusal(&first), "rank 1 has joined already");
    // A rank that has gone leaves its place, and says why if it can.
    first_session.fail("its memory is full");
    drop(first_session);
    let again = loop {
        match join(&first) {
            Ok(session) => break session,
            Err(HostsError::Refused { .. }) => std::thread::sleep(PAUSE),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(*told.lock().unwrap(), ["rank 1 of 3 failed: its memory is full"]);
    let last_session = join(&last).unwrap();
    let sessions = waiting.join().unwrap().unwrap();
    assert_eq!(sessions.iter().map(|session| session.rank).collect::<Vec<_>>(), [1, 2]);
    // It listens no more.
    let soon = Timing { joining: Duration::ZERO, ..timing };
    let late = join(&Join { timing: soon, ..last }).unwrap_err();
    assert!(matches!(late, HostsError::Connect { .. }), "{late}");
    drop((again, last_session));
}

#[test]
fn a_leader_has_to_know_the_secret_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let impostor = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let end = Instant::now() + USUAL;
        receive(&stream, end).unwrap();
        send(&stream, CHALLENGE, Writer::default().bytes(&[1; 32])).unwrap();
        let proof = receive(&stream, end).unwrap();
        // The worker's own proof is not one of a leader.
        let own = Reader(&proof.body[24..]).bytes().unwrap();
        send(&stream, WELCOME, Writer::default().bytes(own).bytes(b"")).unwrap();
    });
    let secret = Some(Secret::new(SECRET));
    let as_worker = Join { address, rank: 1, ranks: 2, secret, timing: patient(USUAL) };
    assert!(matches!(join(&as_worker).unwrap_err(), HostsError::Impostor { .. }));
    impostor.join().unwrap();
}

#[test]
fn addresses_that_others_can_reach_need_a_secret() {
    let open = |address: &str, secret: Option<&str>| {
        Leader::listen(address, 2, secret.map(Secret::new).as_ref(), patient(USUAL))
    };
    assert!(open("127.0.0.1:0", None).is_ok());
    assert!(matches!(open("0.0.0.0:0", None), Err(HostsError::NoSecret { .. })));
    assert!(open("0.0.0.0:0", Some(SECRET)).is_ok());
    assert!(matches!(open("127.0.0.1:0", Some("short")), Err(HostsError::Secret(_))));
    assert!(matches!(open("nowhere", None), Err(HostsError::Listen { .. })));
    let outside = SocketAddr::from(([192, 0, 2, 1], 9000));
    assert!(matches!(secret_for(None, outside), Err(HostsError::NoSecret { .. })));
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let timing = Timing { joining: Duration::ZERO, ..patient(USUAL) };
    let missing = listen(3, timing).wait(&[], &|_| {}).unwrap_err().to_string();
    assert!(missing.contains("rank 1 of 3 has not joined"), "{missing}");
    for (rank, ranks) in [(0, 2), (2, 2), (1, 1), (1, 17)] {
        let as_worker = as_worker(&listen(2, timing), rank, ranks, timing);
        let refused = join(&as_worker).unwrap_err();
        assert!(matches!(refused, HostsError::Rank { .. } | HostsError::Ranks { .. }), "{refused}");
    }
}

/// Connections that say nothing take all places for five seconds.
#[test]
fn a_worker_waits_while_the_leader_greets_others() {
    if akunu_testing::left_to_ci() {
        return;
    }
    let leader = listen(2, patient(USUAL));
    let strangers: Vec<_> =
        (0..MOST_GREETINGS).map(|_| TcpStream::connect(leader.address()).unwrap()).collect();
    let as_worker = as_worker(&leader, 1, 2, patient(USUAL));
    let waiting = std::thread::spawn(move || leader.wait(&[], &|_| {}).map(|sessions| sessions.len()));
    let worker = join(&as_worker).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 1);
    drop((strangers, worker));
}

#[test]
fn an_address_that_cannot_be_one_is_not_tried_again_nor_is_what_is_no_leader() {
    let of = |address: String| {
        let secret = Some(Secret::new(SECRET));
        let timing = Timing { joining: Duration::from_secs(3600), ..patient(USUAL) };
        join(&Join { address, rank: 1, ranks: 2, secret, timing }).unwrap_err()
    };
    for wrong in ["", "127.0.0.1", "127.0.0.1:99999"] {
        let error = of(wrong.into());
        assert!(matches!(error, HostsError::Connect { .. }), "{wrong}: {error}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = of(address.clone()).to_string();
    assert!(error.starts_with(&format!("{address} does not answer as a leader: ")), "{error}");
    other.join().unwrap();
}

/// The leader ends between the two connections of a worker.
#[test]
fn a_worker_whose_leader_ends_while_it_joins_does_not_wait_for_another() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let secret = Secret::new(SECRET);
    let leader = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let Greeted { stream, proof, .. } = greet(stream, &Secret::new(SECRET)).unwrap();
        drop(listener);
        send(&stream, WELCOME, Writer::default().bytes(&proof).bytes(b"")).unwrap();
    });
    let timing = Timing { joining: Duration::from_secs(3600), ..patient(USUAL) };
    let error = join(&Join { address, rank: 1, ranks: 2, secret: Some(secret), timing }).unwrap_err();
    assert!(
        matches!(&error, HostsError::Lost(reason) if reason.starts_with("the leader has gone")),
        "{error}"
    );
    leader.join().unwrap();
}
