//! How workers join the leader.
//!
//! A worker sends a nonce, the leader answers with one of its own, the worker proves that it knows the secret and says
//! which rank it wants to be, and the leader, if it agrees, proves the same. The worker comes first, so that nobody can
//! collect proofs of the leader's secret by asking for them.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::frame::{Frame, FrameError, HANDSHAKE_BYTES, Reader, Writer};
use super::link::{Link, Received, Session, said};
use super::secret::{Nonce, Proof, is_proved, nonce};
use super::{HostsError, MOST_RANKS, Secret, Timing};

/// Changes when what is sent changes.
const VERSION: u64 = 2;
const RELEASE: &str = env!("CARGO_PKG_VERSION");

const HELLO: u8 = 128;
const CHALLENGE: u8 = 129;
const PROOF: u8 = 130;
const WELCOME: u8 = 131;
const REFUSED: u8 = 132;

/// A connection that has not proved that it knows the secret after this time is closed.
const GREETING: Duration = Duration::from_secs(5);
/// The most of these at once; further ones are closed.
const MOST_GREETINGS: usize = 64;
/// Between looks for a new connection, and between attempts to reach the leader.
const PAUSE: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_millis(200);

/// For requests, and for the numbers that ranks exchange.
const CHANNELS: [u64; 2] = [0, 1];

/// What a worker wants to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    ranks: u64,
    rank: u64,
    channel: u64,
}

impl Place {
    fn read(from: &mut Reader<'_>) -> Result<Place, FrameError> {
        Ok(Place { ranks: from.number()?, rank: from.number()?, channel: from.number()? })
    }

    fn write(self, to: Writer) -> Writer {
        to.number(self.ranks).number(self.rank).number(self.channel)
    }

    fn proof(self, secret: &Secret, side: &str, nonces: [&Nonce; 2]) -> Proof {
        let place = self.write(Writer::default()).0;
        secret.prove(&[side.as_bytes(), nonces[0], nonces[1], &place])
    }
}

/// Reads from a connection until a point in time.
struct Until<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

fn receive(stream: &TcpStream, end: Instant) -> Result<Frame, FrameError> {
    Frame::read(&mut Until { stream, end }, HANDSHAKE_BYTES)
}

fn send(mut stream: &TcpStream, kind: u8, body: Writer) -> Result<(), FrameError> {
    Frame { kind, body: body.0 }.write(&mut stream)
}

fn nonce_in(from: &mut Reader<'_>) -> Result<Nonce, FrameError> {
    from.bytes()?.try_into().map_err(|_| FrameError::Malformed("a nonce has 32 bytes"))
}

fn refuse(stream: &TcpStream, reason: &str) {
    // Nobody waits for it any more if this fails.
    let _ = send(stream, REFUSED, Writer::default().bytes(reason.as_bytes()));
}

/// The secret for an address; without one, only other programs of this machine can reach it.
fn secret_for(secret: Option<&Secret>, address: SocketAddr) -> Result<Secret, HostsError> {
    let is_loopback = match address.ip() {
        IpAddr::V6(ip) => ip.to_canonical().is_loopback(),
        ip => ip.is_loopback(),
    };
    match secret {
        Some(secret) => Ok(secret.check().map(|()| secret.clone())?),
        None if is_loopback => Ok(Secret::public()),
        None => Err(HostsError::NoSecret { address: address.to_string() }),
    }
}

fn check_ranks(ranks: usize) -> Result<(), HostsError> {
    match (2..=MOST_RANKS).contains(&ranks) {
        true => Ok(()),
        false => Err(HostsError::Ranks { ranks, most: MOST_RANKS }),
    }
}

/// The process with the first rank, which the others join.
#[derive(Debug)]
pub struct Leader {
    listener: TcpListener,
    address: SocketAddr,
    ranks: usize,
    secret: Secret,
    timing: Timing,
}

/// A connection that has proved that it knows the secret.
struct Greeted {
    stream: TcpStream,
    place: Place,
    /// The leader's, to be sent if it agrees.
    proof: Proof,
}

/// What has joined so far.
#[derive(Default)]
struct Joined {
    link: Option<Link>,
    data: Option<TcpStream>,
}

impl Leader {
    /// Listens on an address for the workers of a model with so many ranks.
    pub fn listen(
        address: &str,
        ranks: usize,
        secret: Option<&Secret>,
        timing: Timing,
    ) -> Result<Leader, HostsError> {
        check_ranks(ranks)?;
        let failed = |error: std::io::Error| HostsError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Leader { secret: secret_for(secret, address)?, listener, address, ranks, timing })
    }

    /// Where workers join, with the port that the system has chosen if none was stated.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all have joined, by rank, and listens no more. Each gets the token. `lost` is called with the reason
    /// when one that has joined ends meanwhile, whose place is then free again.
    pub fn wait(self, token: &[u8], lost: &dyn Fn(&str)) -> Result<Vec<Session>, HostsError> {
        let (greeted, joining) = channel();
        let greetings = Arc::new(AtomicUsize::new(0));
        let end = Instant::now() + self.timing.joining;
        let mut ranks: Vec<Joined> = (1..self.ranks).map(|_| Joined::default()).collect();
        loop {
            self.take_connections(&greeted, &greetings);
            self.admit(&joining, &mut ranks, token)?;
            for joined in &mut ranks {
                if let Some(reason) = joined.link.as_ref().and_then(|link| link.watch().reason()) {
                    lost(&reason);
                    *joined = Joined::default();
                }
            }
            let missing = ranks.iter().position(|joined| joined.data.is_none());
            let Some(missing) = missing.map(|index| index + 1) else { break };
            if Instant::now() >= end {
                let seconds = self.timing.joining.as_secs();
                return Err(HostsError::Missing { missing, ranks: self.ranks, seconds });
            }
            std::thread::sleep(PAUSE);
        }
        let all = ranks.into_iter().zip(1..).filter_map(|(joined, rank)| {
            let Joined { link: Some(link), data: Some(data) } = joined else { return None };
            let (ranks, timing) = (self.ranks, self.timing);
            Some(Session { rank, ranks, link, data, timing, token: Vec::new() })
        });
        Ok(all.collect())
    }

    /// Starts a thread for each new connection, which finds out whether it knows the secret.
    fn take_connections(&self, greeted: &Sender<Greeted>, greetings: &Arc<AtomicUsize>) {
        // Errors are those of a connection that is gone already, or of too many of them.
        while let Ok((stream, _)) = self.listener.accept() {
            if greetings.fetch_add(1, Ordering::Relaxed) >= MOST_GREETINGS {
                greetings.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (secret, greeted, counted) = (self.secret.clone(), greeted.clone(), Arc::clone(greetings));
            let greet = move || {
                // What is wrong with a connection that is not a worker's is of no interest.
                if let Ok(found) = greet(stream, &secret) {
                    let _ = greeted.send(found);
                }
                counted.fetch_sub(1, Ordering::Relaxed);
            };
            // Without a thread, the connection is closed, and the worker tries again.
            if std::thread::Builder::new().name("akunu-greet".into()).spawn(greet).is_err() {
                greetings.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn admit(
        &self,
        joining: &Receiver<Greeted>,
        ranks: &mut [Joined],
        token: &[u8],
    ) -> Result<(), HostsError> {
        while let Ok(Greeted { stream, place, proof }) = joining.try_recv() {
            let index = (place.rank as usize).wrapping_sub(1);
            let problem = match ranks.get(index) {
                _ if place.ranks != self.ranks as u64 => {
                    Some(format!("it has --world {}, and this worker --world {}", self.ranks, place.ranks))
                }
                None => {
                    Some(format!("there is no rank {}; workers are ranks 1 to {}", place.rank, ranks.len()))
                }
                Some(joined) if place.channel == CHANNELS[0] && joined.link.is_some() => {
                    Some(format!("rank {} has joined already", place.rank))
                }
                Some(joined)
                    if place.channel != CHANNELS[0] && (joined.link.is_none() || joined.data.is_some()) =>
                {
                    Some(format!("rank {} has not joined", place.rank))
                }
                Some(_) => None,
            };
            if let Some(problem) = problem {
                refuse(&stream, &problem);
                continue;
            }
            if send(&stream, WELCOME, Writer::default().bytes(&proof).bytes(token)).is_err() {
                continue;
            }
            if place.channel != CHANNELS[0] {
                ranks[index].data = Some(stream);
                continue;
            }
            let peer = format!("rank {} of {} failed", place.rank, self.ranks);
            ranks[index].link = Some(Link::start(stream, peer, Received::Replies, self.timing)?);
        }
        Ok(())
    }
}

/// The leader's side, up to the decision whether the worker may have its place.
fn greet(stream: TcpStream, secret: &Secret) -> Result<Greeted, FrameError> {
    let end = Instant::now() + GREETING;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING))?;
    let own = nonce();
    let hello = receive(&stream, end)?;
    let mut from = Reader(&hello.body);
    if hello.kind != HELLO {
        return Err(FrameError::Malformed("it does not say hello"));
    }
    let (version, release, theirs) = (from.number()?, from.text()?, nonce_in(&mut from)?);
    from.end()?;
    if (version, release) != (VERSION, RELEASE) {
        refuse(&stream, &format!("it is Akunu {RELEASE}, and this worker another release"));
        return Err(FrameError::Malformed("another release"));
    }
    send(&stream, CHALLENGE, Writer::default().bytes(&own))?;
    let answer = receive(&stream, end)?;
    let mut from = Reader(&answer.body);
    let (place, proof) = (Place::read(&mut from)?, from.bytes()?);
    from.end()?;
    let nonces = [&theirs, &own];
    if answer.kind != PROOF || !is_proved(&place.proof(secret, "worker", nonces), proof) {
        refuse(&stream, "this worker does not know the secret");
        return Err(FrameError::Malformed("a wrong proof"));
    }
    let proof = place.proof(secret, "leader", nonces);
    Ok(Greeted { stream, place, proof })
}

/// What a worker joins as.
#[derive(Clone, Debug)]
pub struct Join {
    pub address: String,
    pub rank: usize,
    pub ranks: usize,
    pub secret: Option<Secret>,
    pub timing: Timing,
}

/// Joins the leader, and waits until it is there.
pub fn join(as_worker: &Join) -> Result<Session, HostsError> {
    let &Join { rank, ranks, timing, .. } = as_worker;
    check_ranks(ranks)?;
    if !(1..ranks).contains(&rank) {
        return Err(HostsError::Rank { rank, last: ranks - 1 });
    }
    let end = Instant::now() + timing.joining;
    let (stream, token) = connect(as_worker, CHANNELS[0], end, || None)?;
    let link = Link::start(stream, "the leader has gone".into(), Received::Requests, timing)?;
    // What listens there later is another leader.
    let (data, _) = connect(as_worker, CHANNELS[1], end, || link.watch().reason())?;
    Ok(Session { rank, ranks, link, data, timing, token })
}

/// A connection, and the token. It is tried again until the end, or until there is a reason not to.
fn connect(
    as_worker: &Join,
    channel: u64,
    end: Instant,
    lost: impl Fn() -> Option<String>,
) -> Result<(TcpStream, Vec<u8>), HostsError> {
    if let Some(secret) = &as_worker.secret {
        secret.check()?;
    }
    let place = Place { ranks: as_worker.ranks as u64, rank: as_worker.rank as u64, channel };
    let address = || as_worker.address.clone();
    loop {
        if let Some(reason) = lost() {
            return Err(HostsError::Lost(reason));
        }
        let may_try_again = Instant::now() < end;
        match reach(&as_worker.address) {
            Ok(stream) => {
                let peer = stream.peer_addr().map_err(FrameError::from)?;
                let secret = secret_for(as_worker.secret.as_ref(), peer)?;
                match introduce(&stream, place, &secret, &as_worker.address) {
                    Ok(token) => return Ok((stream, token)),
                    // The leader greets as many as it can at a time, or has just ended.
                    Err(HostsError::Frame(FrameError::Closed | FrameError::Truncated)) if may_try_again => {}
                    Err(HostsError::Frame(error)) => {
                        return Err(HostsError::NoLeader { address: address(), reason: error.to_string() });
                    }
                    Err(error) => return Err(error),
                }
            }
            // No address can be made of it, whenever it is tried.
            Err(error) if !may_try_again || error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(HostsError::Connect { address: address(), reason: error.to_string() });
            }
            Err(_) => {}
        }
        std::thread::sleep(RETRY);
    }
}

fn reach(address: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, GREETING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The worker's side.
fn introduce(
    stream: &TcpStream,
    place: Place,
    secret: &Secret,
    address: &str,
) -> Result<Vec<u8>, HostsError> {
    let end = Instant::now() + GREETING;
    stream.set_nodelay(true).map_err(FrameError::from)?;
    stream.set_write_timeout(Some(GREETING)).map_err(FrameError::from)?;
    let answer = |kind| {
        let frame = receive(stream, end)?;
        match frame.kind {
            REFUSED => {
                let reason = said(Reader(&frame.body).text()?);
                Err(HostsError::Refused { address: address.to_string(), reason })
            }
            found if found == kind => Ok(frame),
            _ => Err(FrameError::Malformed("it is not a leader").into()),
        }
    };
    let own = nonce();
    send(stream, HELLO, Writer::default().number(VERSION).bytes(RELEASE.as_bytes()).bytes(&own))?;
    let challenge = answer(CHALLENGE)?;
    let theirs = nonce_in(&mut Reader(&challenge.body))?;
    let nonces = [&own, &theirs];
    let proof = place.proof(secret, "worker", nonces);
    send(stream, PROOF, place.write(Writer::default()).bytes(&proof))?;
    let welcome = answer(WELCOME)?;
    let mut from = Reader(&welcome.body);
    if !is_proved(&place.proof(secret, "leader", nonces), from.bytes()?) {
        return Err(HostsError::Impostor { address: address.to_string() });
    }
    Ok(from.bytes()?.to_vec())
}

#[cfg(test)]
mod tests;
