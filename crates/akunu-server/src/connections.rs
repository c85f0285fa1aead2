//! Which connections are accepted, and what those beyond the limits may still ask.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

use crate::limits::Limits;

/// Connections beyond the limits that are kept open, for health checks. The oldest is closed for the next.
const SPARE: usize = 16;

/// A number for the client at an address. A client has 2⁶⁴ addresses of IPv6, so only their network counts.
pub(crate) fn client_of(address: IpAddr) -> u64 {
    let address = match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    };
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

/// The open connections of each client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    all: usize,
    of_client: HashMap<u64, usize>,
}

/// A connection within the limits; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    connections: Connections,
    client: u64,
}

impl Connections {
    /// `None`: the server or the client has as many as it may have.
    pub(crate) fn seat(&self, client: u64, limits: &Limits) -> Option<Seat> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.of_client.get(&client).copied().unwrap_or(0);
        if open.all >= limits.connections || own >= limits.client_connections {
            return None;
        }
        open.all += 1;
        open.of_client.insert(client, own + 1);
        Some(Seat { connections: self.clone(), client })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        if let Some(own) = open.of_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                open.of_client.remove(&self.client);
            }
        }
    }
}

/// Connections beyond the limits. A health check takes a moment, so it is done long before so many others have come that
/// its connection is the oldest.
#[derive(Debug, Default)]
pub(crate) struct SpareConnections(VecDeque<AbortHandle>);

impl SpareConnections {
    pub(crate) fn add(&mut self, connection: AbortHandle) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= SPARE {
            self.0.pop_front().inspect(AbortHandle::abort);
        }
        self.0.push_back(connection);
    }
}

/// The mark of requests on a connection beyond the limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnSpare;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_limited_for_all_and_for_each_client() {
        let limits = Limits { connections: 3, client_connections: 2, ..Limits::default() };
        let connections = Connections::default();
        let first: Vec<_> = (0..2).filter_map(|_| connections.seat(1, &limits)).collect();
        assert!(connections.seat(1, &limits).is_none());
        let other = connections.seat(2, &limits);
        assert!(other.is_some() && connections.seat(3, &limits).is_none());
        drop(first);
        assert!(connections.seat(1, &limits).is_some());
        drop(other);
        assert_eq!(connections.0.lock().unwrap().of_client.len(), 0);
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        let client = |text: &str| client_of(text.parse().unwrap());
        assert_eq!(client("2001:db8:1:2:3::1"), client("2001:db8:1:2:ffff::2"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.2"), client("10.0.0.1"));
    }
}
