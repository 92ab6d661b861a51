//! Declarations of the C ABI in Rust's syntax, brought to one form: aliases resolved, parameters without names, `Option` of a function
//! the function.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::{Expr, Fields, Item, Lit, ReturnType, Type};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(i128),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Its fields in order, with their types.
    Struct(Vec<(String, String)>),
    Opaque,
    Alias(String),
}

impl What {
    pub fn is_struct(&self) -> bool {
        matches!(self, What::Struct(_))
    }

    /// The type of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let What::Struct(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, of)| of.as_str())
    }
}

#[derive(Default)]
pub struct Declarations {
    pub types: BTreeMap<String, What>,
    pub constants: BTreeMap<String, Value>,
    pub functions: BTreeMap<String, String>,
    /// Size, and offset of each field, as `layout!` asserts them.
    pub layouts: BTreeMap<String, (u64, Vec<(String, u64)>)>,
    aliases: BTreeMap<String, Type>,
    /// Types to which [`resolve`](Self::resolve) has not been applied.
    structs: BTreeMap<String, Fields>,
}

impl Declarations {
    pub fn of_bindgen(source: &str) -> Self {
        let file = syn::parse_file(source).unwrap();
        let mut all = Declarations::default();
        all.collect(&file.items);
        // `struct kvx_version` and its typedef `kvx_version_t` are one, under the name that programs use.
        let mut typedefs = BTreeMap::new();
        all.aliases.retain(|name, target| {
            let tag = target.to_token_stream().to_string();
            let is_tag = all.structs.contains_key(&tag);
            if is_tag && typedefs.get(&tag).is_none_or(|former: &String| former.len() < name.len()) {
                typedefs.insert(tag, name.clone());
            }
            !is_tag
        });
        for (tag, name) in &typedefs {
            let fields = all.structs.remove(tag).unwrap();
            all.structs.insert(name.clone(), fields);
            all.aliases.insert(tag.clone(), syn::parse_str(name).unwrap());
        }
        all.resolve();
        typedefs.keys().for_each(|tag| drop(all.types.remove(tag)));
        for item in &file.items {
            if let Item::ForeignMod(block) = item {
                for function in &block.items {
                    if let syn::ForeignItem::Fn(function) = function {
                        let signature = all.signature(&function.sig);
                        all.functions.insert(function.sig.ident.to_string(), signature);
                    }
                }
            }
        }
        all
    }

    /// The types, constants and asserted layouts of a file of the crate.
    pub fn add_types(&mut self, source: &str) {
        let file = syn::parse_file(source).unwrap();
        self.collect(&file.items);
        self.resolve();
    }

    /// The functions that a file exports.
    pub fn add_exports(&mut self, source: &str) {
        for item in syn::parse_file(source).unwrap().items {
            let Item::Fn(function) = item else { continue };
            let exported = |attribute: &syn::Attribute| attribute.to_token_stream().to_string().contains("no_mangle");
            if function.attrs.iter().any(exported) {
                let signature = self.signature(&function.sig);
                self.functions.insert(function.sig.ident.to_string(), signature);
            }
        }
    }

    fn collect(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Struct(item) => drop(self.structs.insert(item.ident.to_string(), item.fields.clone())),
                Item::Type(item) => drop(self.aliases.insert(item.ident.to_string(), (*item.ty).clone())),
                Item::Use(item) => self.renamed(&item.tree),
                Item::Const(item) => {
                    if let Some(value) = value(&item.expr) {
                        self.constants.insert(item.ident.to_string(), value);
                    }
                }
                Item::Mod(item) => self.collect(item.content.as_ref().map_or(&[][..], |(_, items)| items)),
                Item::Macro(item) if item.mac.path.is_ident("layout") => self.layout(&item.mac.tokens.to_string()),
                _ => {}
            }
        }
    }

    /// `pub use self::kvx_dtype as kvx_dtype_t`, as bindgen has it for enums.
    fn renamed(&mut self, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => self.renamed(&path.tree),
            syn::UseTree::Rename(rename) => {
                let target = Type::Path(syn::TypePath { qself: None, path: rename.ident.clone().into() });
                self.aliases.insert(rename.rename.to_string(), target);
            }
            _ => {}
        }
    }

    /// `kvx_version_t , 16 , size 0 , abi_major 4`
    fn layout(&mut self, tokens: &str) {
        let mut parts = tokens.split(',').map(str::trim);
        let (name, size) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
        let fields = parts.filter_map(|part| part.split_once(' '));
        let fields = fields.map(|(field, offset)| (field.to_owned(), offset.trim().parse().unwrap())).collect();
        self.layouts.insert(name.to_owned(), (size, fields));
    }

    fn resolve(&mut self) {
        // Not bindgen's own, nor what is named for the crate's convenience alone, nor the assertions of kv_cache.h.
        let of_headers = |name: &&String| {
            ["kv", "llama_"].iter().any(|prefix| name.starts_with(prefix)) && !name.contains("_in_line_")
        };
        for (name, fields) in self.structs.iter().filter(|(name, _)| of_headers(name)) {
            let named = |field: &syn::Field| (field.ident.as_ref().unwrap().to_string(), self.shape(&field.ty));
            let fields: Vec<_> = fields.iter().map(named).collect();
            let opaque = matches!(&fields[..], [(only, _)] if only.starts_with('_'));
            self.types.insert(name.clone(), if opaque { What::Opaque } else { What::Struct(fields) });
        }
        for (name, target) in self.aliases.iter().filter(|(name, _)| of_headers(name)) {
            // The tag of an enum is not what programs name it by.
            let tag = format!("{name}_t");
            if !self.aliases.contains_key(&tag) || name.ends_with("_t") {
                self.types.insert(name.clone(), What::Alias(self.shape(target)));
            }
        }
    }

    fn signature(&self, signature: &syn::Signature) -> String {
        let parameters = signature.inputs.iter().map(|input| match input {
            syn::FnArg::Typed(input) => self.shape(&input.ty),
            syn::FnArg::Receiver(_) => unreachable!("no function of C has a receiver"),
        });
        self.function(parameters.collect(), &signature.output)
    }

    fn function(&self, parameters: Vec<String>, output: &ReturnType) -> String {
        let output = match output {
            ReturnType::Default => "()".to_owned(),
            ReturnType::Type(_, output) => self.shape(output),
        };
        format!("fn({}) -> {output}", parameters.join(", "))
    }

    fn shape(&self, of: &Type) -> String {
        match of {
            Type::Path(path) => {
                let last = path.path.segments.last().unwrap();
                let name = last.ident.to_string();
                if let syn::PathArguments::AngleBracketed(arguments) = &last.arguments {
                    assert_eq!(name, "Option", "{}", of.to_token_stream());
                    let Some(syn::GenericArgument::Type(inner)) = arguments.args.first() else { unreachable!() };
                    return self.shape(inner);
                }
                match name.as_str() {
                    "c_int" => "i32".to_owned(),
                    "c_uint" => "u32".to_owned(),
                    _ => self.aliases.get(&name).map_or(name, |target| self.shape(target)),
                }
            }
            Type::Ptr(pointer) => {
                let which = if pointer.mutability.is_some() { "mut" } else { "const" };
                format!("*{which} {}", self.shape(&pointer.elem))
            }
            Type::Array(array) => {
                let len = match &array.len {
                    Expr::Path(name) => self.constants.get(&name.to_token_stream().to_string()).cloned(),
                    len => value(len),
                };
                format!("[{}; {:?}]", self.shape(&array.elem), len.expect("a length"))
            }
            Type::BareFn(function) => {
                self.function(function.inputs.iter().map(|input| self.shape(&input.ty)).collect(), &function.output)
            }
            other => panic!("no type of C: {}", other.to_token_stream()),
        }
    }
}

/// The value of a constant; none of what is no number and no text.
fn value(of: &Expr) -> Option<Value> {
    Some(match of {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Value::Number(number.base10_parse().ok()?),
            Lit::CStr(text) => Value::Text(text.value().to_str().ok()?.to_owned()),
            Lit::ByteStr(text) => Value::Text(String::from_utf8(text.value()).ok()?.trim_end_matches('\0').to_owned()),
            _ => return None,
        },
        Expr::Unary(negative) if matches!(negative.op, syn::UnOp::Neg(_)) => match value(&negative.expr)? {
            Value::Number(number) => Value::Number(-number),
            Value::Text(_) => return None,
        },
        Expr::Binary(shift) if matches!(shift.op, syn::BinOp::Shl(_)) => {
            match (value(&shift.left)?, value(&shift.right)?) {
                (Value::Number(left), Value::Number(right)) => Value::Number(left << right),
                _ => return None,
            }
        }
        Expr::Path(path) if path.to_token_stream().to_string() == "u64 :: MAX" => Value::Number(u64::MAX.into()),
        _ => return None,
    })
}
