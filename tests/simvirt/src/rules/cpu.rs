//! CPU, memory and I/O threads.

use super::Check;
use crate::quantity::milli;
use crate::value::{flag, list, number, present, text};

const REQUEST: &str = "/domain/resources/requests/cpu";
const LIMIT: &str = "/domain/resources/limits/cpu";

pub(super) fn check(check: &mut Check<'_>) {
    io_threads(check);
    resources(check);
    hugepages(check);
    features(check);
    dedicated(check);
    numa(check);
    realtime(check);
    if super::sockets_above_maximum(check.spec) {
        sockets(check);
    }
}

/// The refusal of more sockets than the maximum.
pub(super) fn sockets(check: &mut Check<'_>) {
    check.refuse(
        ".domain.cpu.sockets",
        "Number of sockets in CPU topology is greater than the maximum sockets allowed".to_owned(),
    );
}

fn io_threads(check: &mut Check<'_>) {
    let Some(policy) = text(check.spec, "/domain/ioThreadsPolicy").map(str::to_owned) else {
        return;
    };
    match policy.as_str() {
        "shared" | "auto" => {}
        "supplementalPool" => {
            let count = number(check.spec, "/domain/ioThreads/supplementalPoolThreadCount");
            if count.unwrap_or(0) < 1 {
                check.refuse(
                    ".domain.ioThreads.count",
                    "the number of iothreads needs to be set and positive for the dedicated policy".to_owned(),
                );
            }
        }
        _ => check.refuse(".domain.ioThreadsPolicy", format!("Invalid IOThreadsPolicy ({policy})")),
    }
}

/// A CPU quantity: its text and its thousandths.
fn cpu_quantity(check: &Check<'_>, pointer: &str) -> Option<(String, i128)> {
    let value = check.spec.pointer(pointer)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let amount = milli(&text)?;
    Some((text, amount))
}

fn resources(check: &mut Check<'_>) {
    let (Some(request), Some(limit)) = (cpu_quantity(check, REQUEST), cpu_quantity(check, LIMIT)) else {
        return;
    };
    if request.1 > limit.1 {
        let at = check.at;
        let message = format!(
            "{at}.domain.resources.requests.cpu '{}' is greater than {at}.domain.resources.limits.cpu '{}'",
            request.0, limit.0
        );
        check.refuse(".domain.resources.requests.cpu", message);
    }
}

fn hugepages(check: &mut Check<'_>) {
    let Some(page) = text(check.spec, "/domain/memory/hugepages/pageSize").map(str::to_owned) else {
        return;
    };
    let request = text(check.spec, "/domain/resources/requests/memory").unwrap_or("0").to_owned();
    let memory = text(check.spec, "/domain/memory/guest").unwrap_or(&request);
    let divides = match (milli(memory), milli(&page)) {
        (Some(memory), Some(page)) if page > 0 => memory % page == 0,
        _ => false,
    };
    if !divides {
        let at = check.at;
        let message = format!(
            "{at}.domain.resources.requests.memory '{request}' is not a multiple of the page size \
             {at}.domain.memory.hugepages.pageSize '{page}'"
        );
        check.refuse(".domain.resources.requests.memory", message);
    }
}

fn features(check: &mut Check<'_>) {
    for (index, feature) in list(check.spec, "/domain/cpu/features").iter().enumerate() {
        let policy = text(feature, "/policy").unwrap_or_default();
        if !["", "force", "require", "optional", "disable", "forbid"].contains(&policy) {
            let name = text(feature, "/name").unwrap_or_default();
            let message = format!("CPU feature {name} uses policy {policy} that is not supported.");
            check.refuse(&format!(".domain.cpu.features[{index}].policy"), message);
        }
    }
}

fn is_dedicated(check: &Check<'_>) -> bool {
    flag(check.spec, "/domain/cpu/dedicatedCpuPlacement") == Some(true)
}

fn dedicated(check: &mut Check<'_>) {
    if !is_dedicated(check) {
        if flag(check.spec, "/domain/cpu/isolateEmulatorThread") == Some(true) {
            check.refuse(
                ".domain.cpu.isolateEmulatorThread",
                "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement".to_owned(),
            );
        }
        return;
    }
    let at = check.at;
    let request = cpu_quantity(check, REQUEST).map(|q| q.1);
    let limit = cpu_quantity(check, LIMIT).map(|q| q.1);
    for (what, amount) in [("requests", request), ("limits", limit)] {
        if amount.is_some_and(|a| a % 1000 != 0) {
            check.refuse(
                &format!(".domain.resources.{what}.cpu"),
                format!("provided resources CPU {what} must be an interger"),
            );
        }
    }
    let pair = format!("{at}.domain.resources.requests.cpu or {at}.domain.resources.limits.cpu");
    if request.zip(limit).is_some_and(|(request, limit)| request != limit) {
        let message = format!("{pair} must be equal when DedicatedCPUPlacement is true ");
        check.refuse(".domain.cpu.dedicatedCpuPlacement", message);
    }
    // The traces show this for 1500m beside 4 cores and not for a limit of 4 beside 4 cores: taken as "differs".
    let cores = number(check.spec, "/domain/cpu/cores").map(i128::from);
    if limit.or(request).zip(cores).is_some_and(|(amount, cores)| amount != cores * 1000) {
        let message = format!(
            "{pair} must not be provided at the same time with {at}.domain.cpu.cores when DedicatedCPUPlacement is \
             true "
        );
        check.refuse(".domain.cpu.dedicatedCpuPlacement", message);
    }
    if let Some(threads) = number(check.spec, "/domain/cpu/threads").filter(|t| *t > 2) {
        let message = format!(
            "Not more than two threads must be provided at {at}.domain.cpu.threads (got {threads}) when \
             DedicatedCPUPlacement is true"
        );
        check.refuse(".domain.cpu.threads", message);
    }
}

fn numa(check: &mut Check<'_>) {
    if !present(check.spec, "/domain/cpu/numa/guestMappingPassthrough") {
        return;
    }
    let at = check.at;
    let strategy = format!("when NUMA topology strategy is set in {at}.domain.cpu.numa.guestMappingPassthrough");
    if !is_dedicated(check) {
        let message = format!("{at}.domain.cpu.dedicatedCpuPlacement must be set to true {strategy}");
        check.refuse(".domain.cpu.numa.guestMappingPassthrough", message);
    }
    if !present(check.spec, "/domain/memory/hugepages") {
        let message = format!("{at}.domain.memory.hugepages must be requested {strategy}");
        check.refuse(".domain.cpu.numa.guestMappingPassthrough", message);
    }
}

fn realtime(check: &mut Check<'_>) {
    if !present(check.spec, "/domain/cpu/realtime") {
        return;
    }
    let at = check.at;
    if !is_dedicated(check) {
        let message =
            format!("{at}.domain.cpu.dedicatedCpuPlacement must be set to true when {at}.domain.cpu.realtime is used");
        check.refuse(".domain.cpu.dedicatedCpuPlacement", message);
    }
    if !present(check.spec, "/domain/cpu/numa/guestMappingPassthrough") {
        let message = format!(
            "{at}.domain.cpu.numa.guestMappingPassthrough must be defined when {at}.domain.cpu.realtime is used"
        );
        check.refuse(".domain.cpu.numa.guestMappingPassthrough", message);
    }
}
