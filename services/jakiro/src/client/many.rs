//! Gets of several items: one call for each partition, or a few if the values are long.
//!
//! # Concurrency
//! The thread of the caller.

use super::{error::ClientError, keyspace::Keyspace, scratch::Scratch, transfer};
use crate::protocol::{Entries, Entry, MAX_KEYS, MAX_PART, Request};

/// Asks for items, and passes each value to `visit` with the place of its key in `keys`.
pub(super) fn get_many(
    keyspace: &Keyspace,
    keys: &[&[u8]],
    visit: &mut dyn FnMut(usize, Option<&[u8]>),
    scratch: &mut Scratch,
) -> Result<(), ClientError> {
    let mut places = vec![Vec::new(); keyspace.sessions.len()];
    for (place, key) in keys.iter().enumerate() {
        places[keyspace.partition(key)?].push(place);
    }
    let mut list = Vec::new();
    for (partition, places) in places.iter().enumerate() {
        let mut open = &places[..];
        while !open.is_empty() {
            list_keys(keys, open, &mut list);
            let done = ask(keyspace, partition, keys, open, &list, visit, scratch)?;
            open = &open[done..];
        }
    }
    Ok(())
}

/// Lists the keys of the next call.
fn list_keys(keys: &[&[u8]], places: &[usize], list: &mut Vec<u8>) {
    list.clear();
    for place in places.iter().take(MAX_KEYS) {
        if list.len() + keys[*place].len() >= MAX_PART {
            break;
        }
        Request::add_key(list, keys[*place]);
    }
}

/// Makes one call. Returns the number of keys that it has answered, at least 1.
fn ask(
    keyspace: &Keyspace,
    partition: usize,
    keys: &[&[u8]],
    places: &[usize],
    list: &[u8],
    visit: &mut dyn FnMut(usize, Option<&[u8]>),
    scratch: &mut Scratch,
) -> Result<usize, ClientError> {
    let fault = |reason| ClientError::Reply { partition, reason };
    let Scratch { request, reply } = scratch;
    keyspace.call_raw(partition, &Request::GetMany { keys: list }, request, reply)?;
    let mut done = 0;
    let mut is_long = false;
    for (entry, place) in Entries::decode(reply).map_err(fault)?.zip(places) {
        match entry.map_err(fault)? {
            Entry::Missing => visit(*place, None),
            Entry::Found(value) => visit(*place, Some(value)),
            Entry::Long => {
                is_long = true;
                break;
            }
        }
        done += 1;
    }
    if is_long {
        let (place, mut value) = (places[done], Vec::new());
        let found = get_alone(keyspace, partition, keys[place], &mut value, scratch)?;
        visit(place, found.then_some(&value[..]));
        done += 1;
    }
    if done == 0 {
        return Err(fault(crate::protocol::DecodeError::Short));
    }
    Ok(done)
}

/// Gets one item. Returns false if there is none.
fn get_alone(
    keyspace: &Keyspace,
    partition: usize,
    key: &[u8],
    value: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<bool, ClientError> {
    let request = Request::Get { with_version: false, key };
    let ending = keyspace.call(partition, &request, &mut scratch.request, value)?;
    if let Some(rest) = ending.transfer {
        transfer::download(keyspace, partition, rest, value, scratch)?;
    }
    Ok(ending.status == crate::protocol::Status::Done)
}
