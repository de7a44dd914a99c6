//! The part of the kernel's ublk interface that is used here, with the names of its header
//! (`include/uapi/linux/ublk_cmd.h`, Linux 6.18): numbers and layouts are facts of the kernel's
//! stable ABI.

/// `_IOR` and `_IOWR` of the kernel's `ioctl.h` for type `u`: direction, size of the argument,
/// number.
const fn ioctl(direction: u32, size: usize, number: u32) -> u32 {
    // The sizes are those of the structures below: 16 and 32.
    #[expect(clippy::cast_possible_truncation, reason = "two constants below 2^14")]
    let size = size as u32;
    (direction << 30) | (size << 16) | ((b'u' as u32) << 8) | number
}

const fn read(number: u32) -> u32 {
    ioctl(2, size_of::<ublksrv_ctrl_cmd>(), number)
}

const fn change(number: u32) -> u32 {
    ioctl(3, size_of::<ublksrv_ctrl_cmd>(), number)
}

const fn io(number: u32) -> u32 {
    ioctl(3, size_of::<ublksrv_io_cmd>(), number)
}

// Commands to /dev/ublk-control.
pub(super) const UBLK_U_CMD_GET_DEV_INFO: u32 = read(0x02);
pub(super) const UBLK_U_CMD_ADD_DEV: u32 = change(0x04);
pub(super) const UBLK_U_CMD_DEL_DEV: u32 = change(0x05);
pub(super) const UBLK_U_CMD_START_DEV: u32 = change(0x06);
pub(super) const UBLK_U_CMD_STOP_DEV: u32 = change(0x07);
pub(super) const UBLK_U_CMD_SET_PARAMS: u32 = change(0x08);
pub(super) const UBLK_U_CMD_GET_PARAMS: u32 = read(0x09);
pub(super) const UBLK_U_CMD_START_USER_RECOVERY: u32 = change(0x10);
pub(super) const UBLK_U_CMD_END_USER_RECOVERY: u32 = change(0x11);
pub(super) const UBLK_U_CMD_GET_DEV_INFO2: u32 = read(0x12);
pub(super) const UBLK_U_CMD_GET_FEATURES: u32 = read(0x13);
pub(super) const UBLK_U_CMD_UPDATE_SIZE: u32 = change(0x15);

// Commands to /dev/ublkcN, and the result of a request.
pub(super) const UBLK_U_IO_FETCH_REQ: u32 = io(0x20);
pub(super) const UBLK_U_IO_COMMIT_AND_FETCH_REQ: u32 = io(0x21);
pub(super) const UBLK_IO_RES_OK: u32 = 0;
pub(super) const UBLK_IO_RES_ABORT: i32 = -19;

// Offsets within /dev/ublkcN: descriptors to map, data to read and write.
pub(super) const UBLKSRV_CMD_BUF_OFFSET: u32 = 0;
pub(super) const UBLKSRV_IO_BUF_OFFSET: u32 = 0x8000_0000;
pub(super) const UBLK_MAX_QUEUE_DEPTH: u32 = 4096;
pub(super) const UBLK_TAG_OFF: u32 = 25;
pub(super) const UBLK_QID_OFF: u32 = 41;

// Flags of a device.
pub(super) const UBLK_F_USER_RECOVERY: u32 = 1 << 3;
pub(super) const UBLK_F_USER_RECOVERY_REISSUE: u32 = 1 << 4;
pub(super) const UBLK_F_UNPRIVILEGED_DEV: u32 = 1 << 5;
pub(super) const UBLK_F_CMD_IOCTL_ENCODE: u32 = 1 << 6;
pub(super) const UBLK_F_USER_COPY: u32 = 1 << 7;
pub(super) const UBLK_F_ZONED: u32 = 1 << 8;
pub(super) const UBLK_F_UPDATE_SIZE: u32 = 1 << 10;

// States of a device.
pub(super) const UBLK_S_DEV_DEAD: u32 = 0;
pub(super) const UBLK_S_DEV_LIVE: u32 = 1;
pub(super) const UBLK_S_DEV_QUIESCED: u32 = 2;

// Requests: the lower 8 bits of `op_flags` are the operation.
pub(super) const UBLK_IO_OP_READ: u32 = 0;
pub(super) const UBLK_IO_OP_WRITE: u32 = 1;
pub(super) const UBLK_IO_OP_FLUSH: u32 = 2;
pub(super) const UBLK_IO_OP_DISCARD: u32 = 3;
pub(super) const UBLK_IO_OP_WRITE_ZEROES: u32 = 5;
pub(super) const UBLK_IO_OP_ZONE_OPEN: u32 = 10;
pub(super) const UBLK_IO_OP_ZONE_CLOSE: u32 = 11;
pub(super) const UBLK_IO_OP_ZONE_FINISH: u32 = 12;
pub(super) const UBLK_IO_OP_ZONE_APPEND: u32 = 13;
pub(super) const UBLK_IO_OP_ZONE_RESET_ALL: u32 = 14;
pub(super) const UBLK_IO_OP_ZONE_RESET: u32 = 15;
pub(super) const UBLK_IO_OP_REPORT_ZONES: u32 = 18;
#[cfg(test)]
pub(super) const UBLK_IO_F_META: u32 = 1 << 11;
pub(super) const UBLK_IO_F_FUA: u32 = 1 << 13;
pub(super) const UBLK_IO_F_NOUNMAP: u32 = 1 << 15;

// Parameters of a device.
pub(super) const UBLK_ATTR_READ_ONLY: u32 = 1 << 0;
pub(super) const UBLK_ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const UBLK_ATTR_FUA: u32 = 1 << 3;
pub(super) const UBLK_PARAM_TYPE_BASIC: u32 = 1 << 0;
pub(super) const UBLK_PARAM_TYPE_DISCARD: u32 = 1 << 1;
pub(super) const UBLK_PARAM_TYPE_ZONED: u32 = 1 << 3;

/// Declares structures of the ABI, and asserts their sizes.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Default, Clone, Copy)]
        #[allow(dead_code, reason = "a layout has all of its fields, used or not")]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

layouts! {
    /// A command to /dev/ublk-control, in the 80 bytes of a large submission entry.
    ublksrv_ctrl_cmd, 32 {
        dev_id: u32,
        queue_id: u16,
        len: u16,
        addr: u64,
        data: [u64; 1],
        dev_path_len: u16,
        pad: u16,
        reserved: u32,
    }
    /// The state of a device: its queues, flags, and server.
    ublksrv_ctrl_dev_info, 64 {
        nr_hw_queues: u16,
        queue_depth: u16,
        state: u16,
        pad0: u16,
        max_io_buf_bytes: u32,
        dev_id: u32,
        ublksrv_pid: i32,
        pad1: u32,
        flags: u64,
        ublksrv_flags: u64,
        owner_uid: u32,
        owner_gid: u32,
        reserved1: u64,
        reserved2: u64,
    }
    /// A request, in the memory that /dev/ublkcN maps.
    ublksrv_io_desc, 24 {
        op_flags: u32,
        nr_sectors: u32,
        start_sector: u64,
        addr: u64,
    }
    /// A command to /dev/ublkcN, in a submission entry.
    ublksrv_io_cmd, 16 {
        q_id: u16,
        tag: u16,
        result: i32,
        addr: u64,
    }
    /// Sizes and attributes.
    ublk_param_basic, 32 {
        attrs: u32,
        logical_bs_shift: u8,
        physical_bs_shift: u8,
        io_opt_shift: u8,
        io_min_shift: u8,
        max_sectors: u32,
        chunk_sectors: u32,
        dev_sectors: u64,
        virt_boundary_mask: u64,
    }
    /// Limits of discards.
    ublk_param_discard, 20 {
        discard_alignment: u32,
        discard_granularity: u32,
        max_discard_sectors: u32,
        max_write_zeroes_sectors: u32,
        max_discard_segments: u16,
        reserved0: u16,
    }
    /// Device numbers, which the kernel fills in.
    ublk_param_devt, 16 {
        char_major: u32,
        char_minor: u32,
        disk_major: u32,
        disk_minor: u32,
    }
    /// Limits of zones.
    ublk_param_zoned, 32 {
        max_open_zones: u32,
        max_active_zones: u32,
        max_zone_append_sectors: u32,
        reserved: [u8; 20],
    }
    /// All parameters of a device; `types` says which of them are set.
    ublk_params, 112 {
        len: u32,
        types: u32,
        basic: ublk_param_basic,
        discard: ublk_param_discard,
        devt: ublk_param_devt,
        zoned: ublk_param_zoned,
    }
    /// A zone in a report (`include/uapi/linux/blkzoned.h`).
    blk_zone, 64 {
        start: u64,
        len: u64,
        wp: u64,
        type_: u8,
        cond: u8,
        non_seq: u8,
        reset: u8,
        resv: [u8; 4],
        capacity: u64,
        reserved: [u8; 24],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        assert_eq!(UBLK_U_CMD_GET_DEV_INFO, 0x8020_7502);
        assert_eq!(UBLK_U_CMD_ADD_DEV, 0xc020_7504);
        assert_eq!(UBLK_U_CMD_UPDATE_SIZE, 0xc020_7515);
        assert_eq!(UBLK_U_IO_FETCH_REQ, 0xc010_7520);
    }
}
