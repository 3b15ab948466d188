//! A vector of plain data in the memory of another process or machine, on the blocking calls.
//!
//! It shows ordered lists and long requests. An ordered list posts an element, then the length that
//! publishes it, with one doorbell. `extend` and `iter` move many elements with each request.
//!
//! `cargo run --release -p rdmabox --example remote_vec` starts a host in this process. With
//! `-- --connect ADDRESS` the host is another process (`examples/lend.rs`). It prints
//!
//! ```text
//! 1000 pushes: 2001 work requests, 1001 doorbells
//! 99000 more at once: 2 work requests, 1 doorbells
//! opened, 100000 elements: 1 work requests, 1 doorbells
//! iterated, the ids sum up to 4999950000: 98 work requests, 98 doorbells
//! set and get, Some(Point { id: 7, x: 777.0, y: 0.5 }): 2 work requests, 2 doorbells
//! ```

use std::{error::Error, marker::PhantomData};

use rdmabox::{Address, MemoryServer, Op, RemoteMr, RequestError, Session};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Data that can be copied between machines: no pointers, no padding, and every bit pattern is
/// valid.
trait Plain: FromBytes + IntoBytes + Immutable {}
impl<T: FromBytes + IntoBytes + Immutable> Plain for T {}

/// The length stands in the first word; elements begin at the next cache line.
const HEADER: u64 = 64;
/// Elements that `iter` reads at a time.
const BATCH: u64 = 1024;

/// A vector in remote memory: one process pushes, any number read.
///
/// Invariant: the elements below the length are written. The length grows in the same ordered
/// list as the elements, behind them.
struct RemoteVec<'a, T> {
    session: &'a Session,
    memory: RemoteMr,
    len: u64,
    elements: PhantomData<T>,
}

impl<'a, T: Plain> RemoteVec<'a, T> {
    /// Creates an empty vector, and discards any previous contents.
    fn create(session: &'a Session, memory: RemoteMr) -> Result<Self, RequestError> {
        session.write(memory.for_write(0, 8)?, &[0; 8])?;
        Ok(RemoteVec { session, memory, len: 0, elements: PhantomData })
    }

    /// Opens the existing vector.
    fn open(session: &'a Session, memory: RemoteMr) -> Result<Self, RequestError> {
        let len = session.load_u64(memory.for_load(0)?)?;
        let vec = RemoteVec { session, memory, len, elements: PhantomData };
        // Values written by a peer are checked before use.
        if vec.len > vec.capacity() {
            Err(RequestError::Invalid("no vector is there".into()))
        } else {
            Ok(vec)
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn capacity(&self) -> u64 {
        self.memory.len().saturating_sub(HEADER) / size_of::<T>() as u64
    }

    /// Returns the offset of an element that the memory has room for.
    fn place(index: u64) -> u64 {
        HEADER + index * size_of::<T>() as u64
    }

    fn push(&mut self, value: T) -> Result<(), RequestError> {
        self.extend(std::slice::from_ref(&value))
    }

    /// Appends all values at once: a reader that sees the new length sees all of them.
    fn extend(&mut self, values: &[T]) -> Result<(), RequestError> {
        let added = values.len() as u64;
        if added > self.capacity() - self.len {
            return Err(RequestError::Invalid(format!("no room for {added} more")));
        }
        let (mut old, data) = (0, values.as_bytes());
        let place = self.memory.for_write(Self::place(self.len), data.len())?;
        self.session.execute(&mut [
            Op::Write { remote: place, data },
            Op::FetchAdd { remote: self.memory.for_atomic(0)?, add: added, old: &mut old },
        ])?;
        self.len += added;
        Ok(())
    }

    fn get(&self, index: u64) -> Result<Option<T>, RequestError> {
        if index >= self.len {
            return Ok(None);
        }
        let mut value = T::new_zeroed();
        let place = self.memory.for_read(Self::place(index), size_of::<T>())?;
        self.session.read(place, value.as_mut_bytes())?;
        Ok(Some(value))
    }

    /// Overwrites an element. A concurrent reader may get bytes of both values.
    fn set(&mut self, index: u64, value: T) -> Result<(), RequestError> {
        if index >= self.len {
            return Err(RequestError::Invalid(format!("index {index} of {}", self.len)));
        }
        let place = self.memory.for_write(Self::place(index), size_of::<T>())?;
        self.session.write(place, value.as_bytes())
    }

    /// Iterates over all elements, and fetches them in batches.
    fn iter(&self) -> impl Iterator<Item = Result<T, RequestError>> {
        (0..self.len).step_by(BATCH as usize).flat_map(|first| {
            let mut batch: Vec<T> = (first..self.len.min(first + BATCH)).map(|_| T::new_zeroed()).collect();
            let out = batch.as_mut_bytes();
            let place = self.memory.for_read(Self::place(first), out.len());
            let read = place.map_err(RequestError::from).and_then(|place| self.session.read(place, out));
            // A failed batch yields one error and no elements.
            let (elements, error) = match read {
                Ok(()) => (batch, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            elements.into_iter().map(Ok).chain(error)
        })
    }
}

#[derive(Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Point {
    id: u64,
    x: f32,
    y: f32,
}

fn point(id: u64) -> Point {
    Point { id, x: id as f32, y: 0.5 }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let socket = std::env::temp_dir().join(format!("remote-vec-{}.sock", std::process::id()));
            let host = MemoryServer::listen(&[Address::Unix(socket)], 4 << 20)?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: remote_vec [--connect ADDRESS]".into()),
    };
    // Requests are posted even on mapped memory, so that the counters are equal everywhere.
    let session = Session::builder().direct(false).connect(&address)?;
    let memory = MemoryServer::locate(&session)?;
    let mut counted = session.stats();
    let mut show = |what: String| {
        let now = session.stats();
        let since = now.since(&counted);
        println!("{what}: {} work requests, {} doorbells", since.work_requests, since.doorbells);
        counted = now;
    };

    let mut points = RemoteVec::create(&session, memory)?;
    for id in 0..1000 {
        points.push(point(id))?;
    }
    show("1000 pushes".into());
    points.extend(&(1000..100_000).map(point).collect::<Vec<_>>())?;
    show("99000 more at once".into());

    // Another reader that knows only the address of the memory.
    let seen = RemoteVec::<Point>::open(&session, memory)?;
    show(format!("opened, {} elements", seen.len()));
    let mut sum = 0;
    for point in seen.iter() {
        sum += point?.id;
    }
    show(format!("iterated, the ids sum up to {sum}"));
    points.set(777, Point { id: 7, ..point(777) })?;
    show(format!("set and get, {:?}", seen.get(777)?));
    assert_eq!(seen.get(100_000)?, None);
    Ok(())
}
