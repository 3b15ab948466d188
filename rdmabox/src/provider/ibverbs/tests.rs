//! Tests of device discovery against a fake library and the real library, and of the layout of C
//! structures.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_int},
    fs,
    mem::{offset_of, size_of},
    net::Ipv4Addr,
    path::Path,
    ptr,
};

use ibverbs_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_port_attr, ibv_port_state};

use super::{
    raw::{Api, QUERY_PORT_WRITES},
    *,
};

/// State of this thread's fake library, and its calls.
#[derive(Default)]
struct Fake {
    /// Error number of listing; 0 for success.
    list_error: c_int,
    /// Error number of opening the named device.
    open_error: Option<(&'static CStr, c_int)>,
    /// Port that does not answer.
    port_error: Option<u8>,
    /// Devices, and the array that the caller sees. No device is added later, so that they do not
    /// move.
    devices: Vec<ibv_device>,
    array: Vec<*mut ibv_device>,
    calls: Vec<&'static str>,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

fn with<R>(work: impl FnOnce(&mut Fake) -> R) -> R {
    FAKE.with_borrow_mut(work)
}

fn fail(number: c_int) {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = number }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    with(|fake| {
        if fake.list_error != 0 {
            fail(fake.list_error);
            return ptr::null_mut();
        }
        fake.calls.push("list");
        fake.array = fake.devices.iter_mut().map(ptr::from_mut).collect();
        // SAFETY: the caller passes a pointer that is valid for the write.
        unsafe { *count = c_int::try_from(fake.array.len()).unwrap() };
        fake.array.push(ptr::null_mut());
        fake.array.as_mut_ptr()
    })
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    with(|fake| {
        assert_eq!(list, fake.array.as_mut_ptr());
        fake.calls.push("free");
    });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { &raw const (*device).name }.cast()
}

unsafe extern "C" fn get_device_guid(_: *mut ibv_device) -> u64 {
    0x0002_c903_00a1_b2c3_u64.to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of the list, whose name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(get_device_name(device)) };
    with(|fake| {
        if let Some((refused, number)) = fake.open_error
            && refused == name
        {
            fail(number);
            return ptr::null_mut();
        }
        fake.calls.push("open");
        // No code reads the context, so any address is valid.
        device.cast()
    })
}

unsafe extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    with(|fake| fake.calls.push("close"));
    0
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes a structure that may be written.
    let attr = unsafe { &mut *attr };
    for (to, from) in attr.fw_ver.iter_mut().zip(b"20.1.2 \0rest") {
        *to = c_char::from_ne_bytes([*from]);
    }
    attr.max_mr_size = u64::MAX;
    attr.max_qp = 64;
    attr.max_qp_wr = 1024;
    attr.max_sge = 30;
    attr.max_cqe = -1;
    attr.max_mr = 77;
    attr.max_qp_rd_atom = 16;
    attr.atomic_cap = 1;
    attr.phys_port_cnt = 2;
    0
}

/// Writes exactly as many bytes as the exported function of libibverbs.
unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    if with(|fake| fake.port_error == Some(port)) {
        return libc::EIO;
    }
    let filled = ibv_port_attr {
        state: if port == 1 { ibv_port_state::IBV_PORT_ACTIVE } else { ibv_port_state::IBV_PORT_DOWN },
        active_mtu: if port == 1 { 3 } else { 0 },
        gid_tbl_len: if port == 1 { 6 } else { -3 },
        max_msg_sz: if port == 1 { 1 << 30 } else { 1 << 31 },
        lid: u16::from(port) * 5,
        link_layer: 3 - port,
        ..Default::default()
    };
    // SAFETY: the caller's structure is at least this long, and does not overlap ours.
    unsafe {
        ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), attr.cast::<u8>(), QUERY_PORT_WRITES)
    };
    0
}

const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7];
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

unsafe extern "C" fn query_gid(_: *mut ibv_context, _: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    let raw = match index {
        0 => LINK_LOCAL,
        2 | 3 | 5 => MAPPED,
        _ => [0; 16],
    };
    // SAFETY: the caller passes a union that may be written.
    unsafe { (*gid).raw = raw };
    0
}

fn library(class: &Path, names: &[&CStr]) -> Library {
    let devices = names.iter().map(|name| {
        let mut device = ibv_device { node_type: 1, transport_type: 0, ..Default::default() };
        for (to, from) in device.name.iter_mut().zip(name.to_bytes_with_nul()) {
            *to = c_char::from_ne_bytes([*from]);
        }
        device
    });
    with(|fake| *fake = Fake { devices: devices.collect(), ..Fake::default() });
    let api = Api {
        get_device_list,
        free_device_list,
        get_device_name,
        get_device_guid,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
    };
    Library::with(api, class)
}

fn class_with_types() -> tempfile::TempDir {
    let class = tempfile::tempdir().unwrap();
    let types = class.path().join("rxe0/ports/1/gid_attrs/types");
    fs::create_dir_all(&types).unwrap();
    for (index, text) in [(0, "RoCE v2\n"), (2, "IB/RoCE v1\n"), (3, "RoCE v2\n")] {
        fs::write(types.join(index.to_string()), text).unwrap();
    }
    class
}

#[test]
fn a_device_is_described_in_full() {
    let class = class_with_types();
    let devices = library(class.path(), &[c"rxe0"]).devices().unwrap();
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    assert_eq!(device.name, "rxe0");
    assert_eq!(device.guid, Guid(0x0002_c903_00a1_b2c3));
    assert_eq!((device.node_type, device.transport), (NodeType::ChannelAdapter, Transport::InfiniBand));

    let details = device.details.as_ref().unwrap();
    assert_eq!(details.fw_version, "20.1.2");
    assert_eq!(details.atomics, AtomicCap::Hca);
    assert_eq!((details.max_qp, details.max_mr), (64, 77));
    let attr = crate::verbs::DeviceAttr {
        name: "rxe0".into(),
        max_qp_wr: 1024,
        max_sge: 30,
        max_cqe: 0,
        max_msg_sz: 1 << 30,
        max_mr_size: u64::MAX,
        max_qp_rd_atom: 16,
        max_inline_data: 0,
        atomics: crate::verbs::AtomicScope::None,
        atomic_ops: crate::verbs::AtomicOps::empty(),
    };
    assert_eq!(details.attr, attr);

    let entry = |index, gid, gid_type| GidEntry { index, gid: Gid(gid), gid_type };
    let first = PortInfo {
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: Some(1024),
        max_msg_sz: 1 << 30,
        lid: 5,
        gids: vec![
            entry(0, LINK_LOCAL, Some(GidType::RoceV2)),
            entry(2, MAPPED, Some(GidType::IbOrRoceV1)),
            entry(3, MAPPED, Some(GidType::RoceV2)),
            entry(5, MAPPED, None),
        ],
    };
    let second = PortInfo {
        number: 2,
        state: PortState::Down,
        link_layer: LinkLayer::InfiniBand,
        active_mtu: None,
        max_msg_sz: 1 << 31,
        lid: 10,
        gids: Vec::new(),
    };
    assert_eq!(first.ipv4_roce_v2().map(|entry| entry.index), Some(3));
    assert_eq!(first.gids[3].gid.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
    assert_eq!(second.ipv4_roce_v2(), None);
    assert_eq!(details.ports, [first, second]);
    assert_eq!(with(|fake| fake.calls.clone()), ["list", "open", "close", "free"]);
}

#[test]
fn a_device_that_cannot_be_opened_does_not_hide_others() {
    let class = class_with_types();
    let library = library(class.path(), &[c"mlx5_0", c"rxe0"]);
    with(|fake| fake.open_error = Some((c"mlx5_0", libc::EACCES)));
    let devices = library.devices().unwrap();
    assert_eq!(devices[0].name, "mlx5_0");
    assert_eq!(
        devices[0].details.as_ref().unwrap_err().to_string(),
        "mlx5_0 cannot be opened: Permission denied (os error 13); the last attempt of several gave this error, so see \
         first whether this user may read and write the device's file in /dev/infiniband"
    );
    assert_eq!(devices[1].name, "rxe0");
    assert!(devices[1].details.is_ok());
    assert_eq!(with(|fake| fake.calls.clone()), ["list", "open", "close", "free"]);
}

#[test]
fn a_port_that_does_not_answer_is_an_error_of_its_device() {
    let class = class_with_types();
    let library = library(class.path(), &[c"rxe0"]);
    with(|fake| fake.port_error = Some(2));
    let devices = library.devices().unwrap();
    match devices[0].details.as_ref().unwrap_err() {
        IbverbsError::Query { device, call, source } => {
            assert_eq!((device.as_str(), *call), ("rxe0", "ibv_query_port"));
            assert_eq!(source.raw_os_error(), Some(libc::EIO));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(with(|fake| fake.calls.clone()), ["list", "open", "close", "free"]);
}

#[test]
fn no_device_is_an_empty_list_unless_the_kernel_has_some() {
    let class = tempfile::tempdir().unwrap();
    assert!(library(class.path(), &[]).devices().unwrap().is_empty());
    assert_eq!(with(|fake| fake.calls.clone()), ["list", "free"]);

    fs::create_dir(class.path().join("siw0")).unwrap();
    let e = library(class.path(), &[]).devices().unwrap_err();
    assert!(!e.is_absence());
    match e {
        IbverbsError::Unusable { devices } => assert_eq!(devices, ["siw0"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kernel_without_verbs_is_distinguished_from_a_failure() {
    let class = tempfile::tempdir().unwrap();
    let library = library(class.path(), &[]);
    with(|fake| fake.list_error = libc::ENOSYS);
    let e = library.devices().unwrap_err();
    assert!(matches!(e, IbverbsError::NoKernelSupport), "{e:?}");
    assert!(e.is_absence());

    with(|fake| fake.list_error = libc::ENOMEM);
    let e = library.devices().unwrap_err();
    assert!(!e.is_absence());
    match e {
        IbverbsError::List(source) => assert_eq!(source.raw_os_error(), Some(libc::ENOMEM)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_error_for_a_missing_library_names_its_packages() {
    let e = Library::open_named("libibverbs-that-is-not-there.so.1").unwrap_err();
    assert!(e.is_absence());
    assert_eq!(
        e.to_string(),
        "libibverbs-that-is-not-there.so.1 cannot be loaded (libibverbs-that-is-not-there.so.1: cannot open shared \
         object file: No such file or directory); it is the RDMA verbs library: on Debian, install the packages \
         libibverbs1 and ibverbs-providers"
    );
}

#[test]
fn a_library_without_verbs_is_rejected() {
    match Library::open_named("libc.so.6").unwrap_err() {
        IbverbsError::SymbolMissing { name, symbol } => {
            assert_eq!((name.as_str(), symbol), ("libc.so.6", "ibv_get_device_list"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_systems_library_opens_or_is_missing() {
    match Library::open() {
        Ok(library) => match library.devices() {
            Ok(devices) => assert!(devices.iter().all(|device| !device.name.is_empty())),
            Err(IbverbsError::NoKernelSupport) => {
                assert!(!Path::new("/sys/class/infiniband_verbs/abi_version").exists());
            }
            Err(e) => assert!(!e.is_absence(), "{e:?}"),
        },
        Err(e) => {
            assert!(matches!(e, IbverbsError::LibraryMissing { .. }), "{e:?}");
            let text = e.to_string();
            assert!(text.starts_with("libibverbs.so.1 cannot be loaded ("), "{text}");
            assert!(text.contains("libibverbs1 and ibverbs-providers"), "{text}");
        }
    }
}

/// The numbers come from the C headers of rdma-core 44 on a 64-bit machine; the types come from a
/// later version.
#[test]
#[cfg(target_pointer_width = "64")]
fn structures_have_the_layout_of_the_c_headers() {
    assert_eq!(size_of::<ibv_device_attr>(), 232);
    assert_eq!(offset_of!(ibv_device_attr, node_guid), 64);
    assert_eq!(offset_of!(ibv_device_attr, max_mr_size), 80);
    assert_eq!(offset_of!(ibv_device_attr, max_qp_wr), 112);
    assert_eq!(offset_of!(ibv_device_attr, max_sge), 120);
    assert_eq!(offset_of!(ibv_device_attr, max_cqe), 132);
    assert_eq!(offset_of!(ibv_device_attr, max_qp_rd_atom), 144);
    assert_eq!(offset_of!(ibv_device_attr, atomic_cap), 164);
    assert_eq!(offset_of!(ibv_device_attr, phys_port_cnt), 227);
    // Later versions append fields to the structure.
    assert!(size_of::<ibv_port_attr>() >= 52);
    assert_eq!(offset_of!(ibv_port_attr, active_mtu), 8);
    assert_eq!(offset_of!(ibv_port_attr, gid_tbl_len), 12);
    assert_eq!(offset_of!(ibv_port_attr, max_msg_sz), 20);
    assert_eq!(offset_of!(ibv_port_attr, lid), 34);
    assert_eq!(offset_of!(ibv_port_attr, link_layer), 46);
    assert_eq!(offset_of!(ibv_port_attr, flags), 47);
    assert_eq!(size_of::<ibv_gid>(), 16);
    assert_eq!(offset_of!(ibv_device, node_type), 16);
    assert_eq!(offset_of!(ibv_device, transport_type), 20);
    assert_eq!(offset_of!(ibv_device, name), 24);
}
