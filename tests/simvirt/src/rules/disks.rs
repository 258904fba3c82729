//! Disks: one by one, and among each other.

use serde_json::Value;

use super::Check;
use crate::value::{flag, list, number, present, text};

const DISKS: &str = "/domain/devices/disks";
const BUSES: [&str; 4] = ["virtio", "scsi", "sata", "usb"];

/// Checks every disk for itself, and that names differ.
pub(super) fn each(check: &mut Check<'_>) {
    for (index, disk) in list(check.spec, DISKS).iter().enumerate() {
        let at = format!("{}.domain.devices.disks[{index}]", check.at);
        let mut refuse = |message: String| check.refuse(&format!(".domain.devices.disks[{index}]"), message);
        let (kind, bus) = ["disk", "lun", "cdrom"]
            .into_iter()
            .find(|kind| disk.get(*kind).is_some())
            .map_or(("disk", ""), |kind| (kind, text(disk, &format!("/{kind}/bus")).unwrap_or_default()));
        if bus == "ide" {
            refuse("IDE bus is not supported".to_owned());
        } else if !bus.is_empty() && !BUSES.contains(&bus) {
            refuse(format!("{at} is set with an unrecognized bus {bus}, must be one of: [{}]", BUSES.join(" ")));
        } else if kind == "cdrom" && bus == "virtio" {
            refuse(format!("Bus type {bus} is invalid for CD-ROM device"));
        } else if kind == "disk" && bus == "sata" && flag(disk, "/disk/readonly") == Some(true) {
            refuse(format!("{bus} hard-disks do not support read-only."));
        }
        if flag(disk, "/dedicatedIOThread") == Some(true) && !bus.is_empty() && bus != "virtio" {
            refuse(format!("IOThreads are not supported for disks on a {bus} bus"));
        }
        if text(disk, "/io").is_some_and(|io| !["", "native", "threads"].contains(&io)) {
            let all = at.split('[').next().unwrap_or_default();
            refuse(format!("Disk IO mode for {all} is not supported. Supported modes are: native, threads."));
        }
        if let Some(cache) = text(disk, "/cache").filter(|c| !["", "none", "writethrough", "writeback"].contains(c)) {
            refuse(format!("{at}.cache has invalid value {cache}"));
        }
        if let Some(policy) =
            text(disk, "/errorPolicy").filter(|p| !["stop", "ignore", "report", "enospace"].contains(p))
        {
            refuse(format!("{at}.errorPolicy has invalid value \"{policy}\""));
        }
        block_size(disk, bus, &mut refuse);
        let earlier =
            list(check.spec, DISKS).iter().take(index).position(|other| text(other, "/name") == text(disk, "/name"));
        if let Some(other) = earlier {
            let message = format!("{at} and {}.domain.devices.disks[{other}] must not have the same Name.", check.at);
            check.refuse(&format!(".domain.devices.disks[{index}].name"), message);
        }
    }
}

fn block_size(disk: &Value, bus: &str, refuse: &mut impl FnMut(String)) {
    let size = |part: &str| number(disk, &format!("/blockSize/custom/{part}"));
    let (Some(logical), Some(physical)) = (size("logical"), size("physical")) else {
        return;
    };
    if bus == "sata" && logical != 512 {
        refuse(format!("Logical size {logical} must be 512 for SATA devices"));
    }
    if logical > physical {
        refuse(format!("Logical size {logical} must be the same or less than the physical size of {physical}"));
    }
}

/// Checks volumes behind disks, and the boot order.
pub(super) fn together(check: &mut Check<'_>) {
    let mut orders = Vec::new();
    for (index, disk) in list(check.spec, DISKS).iter().enumerate() {
        let at = format!("{}.domain.devices.disks[{index}]", check.at);
        let name = text(disk, "/name").unwrap_or_default();
        let volume = list(check.spec, "/volumes").iter().any(|v| text(v, "/name") == Some(name));
        // A CD-ROM may be empty.
        if !volume && !present(disk, "/cdrom") {
            check.refuse(&format!(".domain.devices.disks[{index}].name"), format!("{at}.Name '{name}' not found."));
        }
        if let Some(order) = number(disk, "/bootOrder") {
            if orders.contains(&order) {
                check.refuse(
                    &format!(".domain.devices.disks[{index}].bootOrder"),
                    format!("Boot order for {at}.bootOrder already set for a different device."),
                );
            }
            orders.push(order);
        }
    }
}
