//! Components that are made byte by byte, because no text would be as short.

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &leb(content.len()), content].concat()
}

const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// The section of a module that has a memory of one page.
pub const A_MEMORY: [u8; 5] = [5, 3, 1, 0, 1];

/// A component, and behind it a module of some sections that is instantiated so many times.
pub fn instantiated(component: &[u8], sections: &[u8], count: usize) -> Vec<u8> {
    let is_module = |payload: &wasmparser::Payload| matches!(payload, wasmparser::Payload::ModuleSection { .. });
    let modules =
        wasmparser::Parser::new(0).parse_all(component).filter(|payload| payload.as_ref().is_ok_and(is_module));
    let index = leb(modules.count());
    let module = [MODULE, sections].concat();
    // Each instantiates that module with no arguments.
    let one = [&[0][..], &index, &[0]].concat();
    let instances = [leb(count), one.repeat(count)].concat();
    [component, &section(1, &module), &section(2, &instances)].concat()
}

/// A component around a module of so many functions, each of which multiplies its argument with itself so many times.
pub fn with_functions(count: usize, steps: usize) -> Vec<u8> {
    let step = [0x20, 0, 0x20, 0, 0x7e, 0x21, 0];
    let code = [&[0][..], &step.repeat(steps), &[0x20, 0, 0x0b]].concat();
    let bodies = [leb(code.len()), code].concat().repeat(count);
    let module = [
        MODULE,
        &section(1, &[1, 0x60, 1, 0x7e, 1, 0x7e]),
        &section(3, &[leb(count), vec![0; count]].concat()),
        &section(10, &[leb(count), bodies].concat()),
    ]
    .concat();
    [COMPONENT, &section(1, &module)].concat()
}
