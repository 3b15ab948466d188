//! The functions of libibverbs that discover devices, and guards that release their results.
//!
//! This module contains all unsafe code of discovery; objects on an open device are in `handles`.
//!
//! # Concurrency
//! A [`Context`] may be used by any thread. Lists borrow the function table and stay on their
//! thread.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    marker::PhantomData,
    ptr::{self, NonNull},
    slice,
};

use ibverbs_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_port_attr};
use libloading::os::unix;

use crate::provider::ibverbs::{
    discovery::{Gid, Guid, NodeType, Transport},
    error::IbverbsError,
};

/// Number of bytes that the exported `ibv_query_port` writes, in every version of the library.
pub(crate) const QUERY_PORT_WRITES: usize = 48;
const _: () = assert!(size_of::<ibv_port_attr>() >= QUERY_PORT_WRITES);

/// Addresses of the library's functions. They stay valid because the library is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    pub(crate) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub(crate) free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub(crate) get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub(crate) get_device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64,
    pub(crate) open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub(crate) close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    pub(crate) query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    /// The exported function, not the inline function of the C header. It writes the structure of
    /// the first version ([`QUERY_PORT_WRITES`] bytes) and leaves later fields unchanged.
    pub(crate) query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    pub(crate) query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
}

impl Api {
    /// Loads the library `name` for the rest of the process's life and finds its functions.
    pub(crate) fn load(name: &str) -> Result<Api, IbverbsError> {
        // RTLD_NODELETE: the library keeps state and has loaded drivers that need it, and the
        // function addresses must stay valid.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the initializers of libibverbs may run on any thread at any time.
        let library = unsafe { unix::Library::open(Some(name), flags) }
            .map_err(|e| IbverbsError::LibraryMissing { name: name.to_owned(), reason: loader_words(&e) })?;
        // Each call names the C function whose type the field has.
        macro_rules! function {
            ($symbol:literal) => {
                // SAFETY: the field has the type of the C function. dlsym returns the default
                // version of the symbol, which current headers describe.
                *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                    .map_err(|_| IbverbsError::SymbolMissing { name: name.to_owned(), symbol: $symbol })?
            };
        }
        Ok(Api {
            get_device_list: function!("ibv_get_device_list"),
            free_device_list: function!("ibv_free_device_list"),
            get_device_name: function!("ibv_get_device_name"),
            get_device_guid: function!("ibv_get_device_guid"),
            open_device: function!("ibv_open_device"),
            close_device: function!("ibv_close_device"),
            query_device: function!("ibv_query_device"),
            query_port: function!("ibv_query_port"),
            query_gid: function!("ibv_query_gid"),
        })
    }

    /// Returns the devices for which libibverbs has a driver.
    pub(crate) fn device_list(&self) -> io::Result<DeviceList<'_>> {
        let mut count = 0;
        // SAFETY: `count` is valid for the write.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(DeviceList { api: self, list, count: usize::try_from(count).unwrap_or(0) }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

/// Returns the dynamic loader's message, which libloading replaces by a general text.
pub(crate) fn loader_words(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// The list of devices; the drop frees it.
pub(crate) struct DeviceList<'a> {
    api: &'a Api,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList<'_> {
    /// Returns the devices of the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RawDevice<'_>> {
        // SAFETY: libibverbs returned an array of `count` pointers and a null pointer. It lives
        // until our drop frees it, and no code writes to it.
        let devices = unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) };
        devices.iter().filter_map(|&device| {
            Some(RawDevice { api: self.api, device: NonNull::new(device)?, list: PhantomData })
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from get_device_list and is freed once. Devices of the list borrow
        // it, so none is left.
        unsafe { (self.api.free_device_list)(self.list.as_ptr()) }
    }
}

/// A device of a list.
pub(crate) struct RawDevice<'a> {
    api: &'a Api,
    device: NonNull<ibv_device>,
    list: PhantomData<&'a DeviceList<'a>>,
}

impl<'a> RawDevice<'a> {
    /// Returns the name, or an empty string if the library has none.
    pub(crate) fn name(&self) -> String {
        // SAFETY: the device belongs to a live list.
        let name = unsafe { (self.api.get_device_name)(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a NUL-terminated string inside the device, unchanged while the list lives.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Returns the GUID.
    pub(crate) fn guid(&self) -> Guid {
        // SAFETY: the device belongs to a live list.
        Guid(u64::from_be(unsafe { (self.api.get_device_guid)(self.device.as_ptr()) }))
    }

    /// Returns the node type and the transport.
    pub(crate) fn kind(&self) -> (NodeType, Transport) {
        let device = self.device.as_ptr();
        // SAFETY: the device belongs to a live list. The two fields are part of the C interface.
        // They are read without a reference to the whole structure, whose other fields the library
        // may use.
        let (node_type, transport) = unsafe { ((*device).node_type, (*device).transport_type) };
        (NodeType::from_raw(node_type), Transport::from_raw(transport))
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> io::Result<Context> {
        // SAFETY: the device belongs to a live list.
        let context = unsafe { (self.api.open_device)(self.device.as_ptr()) };
        match NonNull::new(context) {
            Some(context) => Ok(Context { api: *self.api, context }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

/// An open device; the drop closes it. It does not need the list in which it was found.
#[derive(Debug)]
pub(crate) struct Context {
    api: Api,
    context: NonNull<ibv_context>,
}

// SAFETY: any thread may call verbs concurrently (the functions are documented as thread-safe),
// and the pointer is owned.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the C context, to create objects on the device.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Returns the limits of the device.
    pub(crate) fn query_device(&self) -> io::Result<ibv_device_attr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open, `attr` is valid for writes.
        check(unsafe { (self.api.query_device)(self.context.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    /// Returns the attributes of a port. The fields behind `flags` stay zero.
    pub(crate) fn query_port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open; `attr` is valid for writes and at least as large as the
        // written part.
        check(unsafe { (self.api.query_port)(self.context.as_ptr(), port, &raw mut attr) })?;
        Ok(attr)
    }

    /// Returns an entry of a port's GID table. Empty entries are zero.
    pub(crate) fn query_gid(&self, port: u8, index: c_int) -> io::Result<Gid> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, `gid` is valid for writes.
        check(unsafe { (self.api.query_gid)(self.context.as_ptr(), port, index, ptr::from_mut(&mut gid)) })?;
        // SAFETY: every variant of the union is 16 bytes of initialized integers.
        Ok(Gid(unsafe { gid.raw }))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context came from open_device and is closed once; objects on the device keep
        // it alive. A failure leaves nothing to do.
        let _ = unsafe { (self.api.close_device)(self.context.as_ptr()) };
    }
}

/// Converts a result of the library: 0, an error number, or -1 with the number in `errno`.
fn check(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(status)),
        _ => Err(io::Error::last_os_error()),
    }
}
