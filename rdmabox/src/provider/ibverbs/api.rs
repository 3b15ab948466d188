//! The functions of libibverbs that are used, and guards that give back what they return.
//!
//! All that is unsafe about finding devices is here; what is made on an open one is in `handles`. Lists borrow the function
//! table and are not sent between threads. Nothing here decides anything.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    marker::PhantomData,
    ptr::{self, NonNull},
    slice,
};

use ibverbs_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_port_attr};
use libloading::os::unix;

use super::{Gid, Guid, IbverbsError, NodeType, Transport};

/// Bytes that the exported `ibv_query_port` fills in, whatever the version of the library.
pub(super) const QUERY_PORT_WRITES: usize = 48;
const _: () = assert!(size_of::<ibv_port_attr>() >= QUERY_PORT_WRITES);

/// Addresses of the library's functions. They stay valid: the library is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub(super) get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub(super) get_device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64,
    pub(super) open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub(super) close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    /// The exported function, not the inline one that the C header puts in its place. It fills in the structure
    /// as it was before fields were added at its end ([`QUERY_PORT_WRITES`] bytes); the rest stays as the caller
    /// left it.
    pub(super) query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    pub(super) query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
}

impl Api {
    /// Loads the library `name` for the rest of the program's life and finds its functions.
    pub(super) fn load(name: &str) -> Result<Api, IbverbsError> {
        // RTLD_NODELETE: the library keeps state of its own and has drivers loaded that need it, and the addresses
        // found here have to stay valid.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the initialisers of libibverbs may run on any thread at any time.
        let library = unsafe { unix::Library::open(Some(name), flags) }
            .map_err(|e| IbverbsError::LibraryMissing { name: name.to_owned(), reason: loader_words(&e) })?;
        // Each call names a function of the C interface beside the field whose type is that function's.
        macro_rules! function {
            ($symbol:literal) => {
                // SAFETY: the field that receives the address has the C function's type; dlsym gives the default
                // version of the symbol, the one that the headers of today describe.
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

    /// The devices that libibverbs has a driver for.
    pub(super) fn device_list(&self) -> io::Result<DeviceList<'_>> {
        let mut count = 0;
        // SAFETY: `count` is valid for the write.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(DeviceList { api: self, list, count: usize::try_from(count).unwrap_or(0) }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

/// The dynamic loader's own words, which libloading hides behind a general text.
pub(super) fn loader_words(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// The list of devices; given back when dropped.
pub(super) struct DeviceList<'a> {
    api: &'a Api,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList<'_> {
    /// The devices of the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = RawDevice<'_>> {
        // SAFETY: libibverbs returned an array of `count` pointers (and a null one), which lives until it is freed
        // by our drop; nobody writes to it.
        let devices = unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) };
        devices.iter().filter_map(|&device| {
            Some(RawDevice { api: self.api, device: NonNull::new(device)?, list: PhantomData })
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from get_device_list and is freed once; devices and contexts that were made of it
        // borrow it, so there are none left.
        unsafe { (self.api.free_device_list)(self.list.as_ptr()) }
    }
}

/// A device of a list.
pub(super) struct RawDevice<'a> {
    api: &'a Api,
    device: NonNull<ibv_device>,
    list: PhantomData<&'a DeviceList<'a>>,
}

impl<'a> RawDevice<'a> {
    /// Its name; empty if the library has none.
    pub(super) fn name(&self) -> String {
        // SAFETY: the device belongs to a list that is alive.
        let name = unsafe { (self.api.get_device_name)(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a string inside the device, ended by a zero byte and unchanged while the list lives.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Its identifier.
    pub(super) fn guid(&self) -> Guid {
        // SAFETY: the device belongs to a list that is alive.
        Guid(u64::from_be(unsafe { (self.api.get_device_guid)(self.device.as_ptr()) }))
    }

    /// What kind of node it is, and the transport that it speaks.
    pub(super) fn kind(&self) -> (NodeType, Transport) {
        let device = self.device.as_ptr();
        // SAFETY: the device belongs to a list that is alive; the two fields are part of the C interface, and read
        // without making a reference to the whole, whose other parts the library may use.
        let (node_type, transport) = unsafe { ((*device).node_type, (*device).transport_type) };
        (NodeType::from_raw(node_type), Transport::from_raw(transport))
    }

    /// Opens it.
    pub(super) fn open(&self) -> io::Result<Context> {
        // SAFETY: the device belongs to a list that is alive.
        let context = unsafe { (self.api.open_device)(self.device.as_ptr()) };
        match NonNull::new(context) {
            Some(context) => Ok(Context { api: *self.api, context }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

/// An open device; closed when dropped. It needs the list that it was found in no longer.
#[derive(Debug)]
pub(super) struct Context {
    api: Api,
    context: NonNull<ibv_context>,
}

// SAFETY: verbs may be called on any thread, by several at once (ibv_open_device and its kin are documented as
// thread-safe); the pointer is owned.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The device's context, for making things on it.
    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Limits of the device.
    pub(super) fn query_device(&self) -> io::Result<ibv_device_attr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open, `attr` is valid for writes.
        check(unsafe { (self.api.query_device)(self.context.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    /// Attributes of a port. The fields behind `flags` stay zero.
    pub(super) fn query_port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open, `attr` is valid for writes and at least as large as what is written.
        check(unsafe { (self.api.query_port)(self.context.as_ptr(), port, &raw mut attr) })?;
        Ok(attr)
    }

    /// An entry of a port's GID table; empty entries are zero.
    pub(super) fn query_gid(&self, port: u8, index: c_int) -> io::Result<Gid> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, `gid` is valid for writes.
        check(unsafe { (self.api.query_gid)(self.context.as_ptr(), port, index, ptr::from_mut(&mut gid)) })?;
        // SAFETY: every variant of the union is 16 bytes of integers, all of them initialised.
        Ok(Gid(unsafe { gid.raw }))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context came from open_device and is closed once; whatever is made on it keeps it alive. A failure
        // leaves nothing to be done.
        let _ = unsafe { (self.api.close_device)(self.context.as_ptr()) };
    }
}

/// The library returns 0, an error number, or -1 with the number in `errno`.
fn check(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(status)),
        _ => Err(io::Error::last_os_error()),
    }
}
