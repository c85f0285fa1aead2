// An exception that leaves a callback ends the process; it is not undefined behaviour. "caught" would be printed if it
// passed.
#include <cstdio>

#include "check.h"

int main() {
    akunu_model *model = load(1);
    akunu_session *session = nullptr;
    OK(akunu_create_session(model, &session));
    uint32_t prompt[64];
    size_t count = encode(model, PROMPT, prompt, 64);
    auto throws = [](const akunu_piece *, void *) -> int32_t { throw 1; };
    try {
        akunu_generate(session, prompt, count, nullptr, throws, nullptr, nullptr);
    } catch (...) {
        std::puts("caught");
    }
}
