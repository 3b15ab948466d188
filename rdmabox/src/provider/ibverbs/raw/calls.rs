//! The functions of libibverbs that create objects on an open device, and the C layout of work
//! completions.
//!
//! Posting and polling are not exported by the library. They call the driver through the function
//! table in the context, as the inline functions `ibv_post_send` and `ibv_poll_cq` of the C
//! header do.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::{offset_of, size_of},
};

use ibverbs_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr,
};
use libloading::os::unix;

use super::api::loader_words;
use crate::provider::ibverbs::error::IbverbsError;

/// Addresses of the library's functions. They stay valid because the library is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub(crate) reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub(crate) create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
    pub(crate) destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    pub(crate) create_cq: unsafe extern "C" fn(
        *mut ibv_context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub(crate) get_cq_event:
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    pub(crate) ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint),
    pub(crate) create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub(crate) get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
    pub(crate) ack_async_event: unsafe extern "C" fn(*mut ibv_async_event),
}

impl Calls {
    /// Loads the library `name` for the rest of the process's life and finds its functions.
    pub(crate) fn load(name: &str) -> Result<Calls, IbverbsError> {
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
        Ok(Calls {
            alloc_pd: function!("ibv_alloc_pd"),
            dealloc_pd: function!("ibv_dealloc_pd"),
            reg_mr: function!("ibv_reg_mr"),
            dereg_mr: function!("ibv_dereg_mr"),
            create_comp_channel: function!("ibv_create_comp_channel"),
            destroy_comp_channel: function!("ibv_destroy_comp_channel"),
            create_cq: function!("ibv_create_cq"),
            destroy_cq: function!("ibv_destroy_cq"),
            get_cq_event: function!("ibv_get_cq_event"),
            ack_cq_events: function!("ibv_ack_cq_events"),
            create_qp: function!("ibv_create_qp"),
            modify_qp: function!("ibv_modify_qp"),
            destroy_qp: function!("ibv_destroy_qp"),
            get_async_event: function!("ibv_get_async_event"),
            ack_async_event: function!("ibv_ack_async_event"),
        })
    }
}

/// `struct ibv_wc` with plain integers, because a device may report a status that no enumeration
/// has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawWc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

const _: () = {
    use ibverbs_sys::ibv_wc;
    assert!(size_of::<RawWc>() == size_of::<ibv_wc>() && align_of::<RawWc>() == align_of::<ibv_wc>());
    assert!(offset_of!(RawWc, imm_data) == offset_of!(ibv_wc, imm_data));
    assert!(offset_of!(RawWc, qp_num) == offset_of!(ibv_wc, qp_num));
    assert!(offset_of!(RawWc, wc_flags) == offset_of!(ibv_wc, wc_flags));
    assert!(offset_of!(RawWc, slid) == offset_of!(ibv_wc, slid));
};
